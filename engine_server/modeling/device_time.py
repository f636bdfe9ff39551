"""How long a step waits for its device: in the model's call and the sampler's kernels. The rest is host work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_seconds = 0.0


@contextmanager
def device_work() -> Iterator[None]:
    """Count what runs within."""
    global _seconds
    started = time.perf_counter()
    try:
        yield
    finally:
        _seconds += time.perf_counter() - started


def take() -> float:
    """The seconds since the last call."""
    global _seconds
    seconds, _seconds = _seconds, 0.0
    return seconds
