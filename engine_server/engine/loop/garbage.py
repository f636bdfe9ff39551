"""Settings of the garbage collector for a process that serves requests."""

import gc

# Young objects before a collection, and collections before one of the next generation. With Python's own defaults a
# collection runs for every few tokens.
THRESHOLDS = (10_000, 10, 50)


def settle() -> None:
    """Exclude everything that is loaded by now from garbage collection, which would stop the event loop for it.

    Modules, the model's configuration and the tokenizer are hundreds of thousands of objects that stay for good.
    """
    gc.collect()
    gc.freeze()
    if gc.isenabled():
        gc.set_threshold(*THRESHOLDS)
