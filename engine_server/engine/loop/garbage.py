"""Settings of the garbage collector for a process that serves requests."""

import gc

# Number of new objects that trigger a collection, and of collections that trigger one of the next generation. With
# Python's defaults a collection runs every few tokens.
THRESHOLDS = (10_000, 10, 50)


def settle() -> None:
    """Exclude all current objects from garbage collection, which would block the event loop to traverse them.

    Modules, the model's configuration and the tokenizer are hundreds of thousands of objects that are never freed.
    """
    gc.collect()
    gc.freeze()
    if gc.isenabled():
        gc.set_threshold(*THRESHOLDS)
