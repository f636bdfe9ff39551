"""Measurement of the event loop's stalls: times in which it runs no task."""

import asyncio

# Seconds between two timers; a measured stall is too short by up to this much.
INTERVAL = 0.01
# Number of timers after the last call of `take`.
IDLE_TICKS = 100


class StallMonitor:
    """A timer that runs while the engine works, and whose delay is measured."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._longest: float | None = None
        self._num_idle = 0

    def take(self) -> list[float]:
        """Return the longest stall since the last call, in seconds; nothing if no timer has run."""
        longest, self._longest, self._num_idle = self._longest, None, 0
        if self._timer is None:
            self._start()
        return [] if longest is None else [longest]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + INTERVAL
        self._timer = loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        stall = max(0.0, asyncio.get_running_loop().time() - self._due)
        self._longest = max(stall, self._longest or 0.0)
        self._num_idle += 1
        self._timer = None
        if self._num_idle < IDLE_TICKS:
            self._start()
