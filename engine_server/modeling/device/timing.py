"""Time that a step waits for its device: in the model's call, the sampler's kernels and drafts. The rest is host work.

A GPU computes while the host continues: its time is measured by its own clock, between two timed events
(`Platform.record_event`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """A sum of one model's time in device calls, in seconds of the host's clock."""

    def __init__(self) -> None:
        self._seconds = 0.0
        # Number of blocks of `measure` that have been entered.
        self._depth = 0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time of the block, once if it is within another."""
        started = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._seconds += time.perf_counter() - started

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def elapsed_seconds(first: torch.Event | None, last: torch.Event | None) -> float:
    """Wait for `last`, and return the seconds from `first` to it; 0 without events."""
    if first is None or last is None:
        return 0.0
    last.synchronize()
    return first.elapsed_time(last) / 1e3
