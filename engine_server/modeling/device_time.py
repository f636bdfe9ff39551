"""How long a step waits for its device: in the model's call and the sampler's kernels. The rest is host work.

A GPU goes on by itself; how long it takes is told by its own clock, between two marks in its work.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


def mark(device: torch.device) -> torch.Event | None:
    """A mark behind all that a GPU was given; none on another device."""
    if device.type != "cuda":
        return None
    event = torch.Event(device, enable_timing=True)
    event.record()
    return event


def between(first: torch.Event | None, last: torch.Event | None) -> float:
    """The seconds from one mark to another, for which this waits; 0 without."""
    if first is None or last is None:
        return 0.0
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def take() -> float:
    """The seconds since the last call."""
    global _seconds
    seconds, _seconds = _seconds, 0.0
    return seconds
