"""The progress of reading weights: for whoever watches the engine start, and in the log."""

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import transformers

from engine_server.modeling.device.progress import ProgressClock

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0
logger = logging.getLogger(__name__)


@contextmanager
def reported_progress(clock: ProgressClock) -> Iterator[None]:
    """Give the share of the weights that are loaded to a clock, and to the log in place of transformers' bars."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hook = transformers.utils.logging.set_tqdm_hook(partial(show_progress, clock))
    try:
        yield
    finally:
        transformers.utils.logging.set_tqdm_hook(hook)


def progress(clock: ProgressClock, items: Collection[T], what: str) -> Iterator[T]:
    """Record the progress of a loop over weights, and log it every few seconds."""
    logged = time.monotonic()
    for count, item in enumerate(items):
        clock.loaded = count / len(items)
        if time.monotonic() - logged > SECONDS_BETWEEN_LINES:
            logged = time.monotonic()
            logger.info("%s: %d of %d", what, count, len(items))
        yield item
    clock.loaded = 1.0


def show_progress(clock: ProgressClock, factory: Any, args: Any, options: Any) -> Any:
    """Return transformers' progress bar, or log lines instead of a bar with a description."""
    return progress(clock, args[0], options["desc"]) if "desc" in options else factory(*args, **options)
