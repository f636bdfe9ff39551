"""Measurement of the event loop's stalls."""

import time

from waiting import until_async

from engine_server.engine.loop.stall_monitor import StallMonitor


async def test_stall_monitor_reports_the_longest_stall_since_the_last_call() -> None:
    monitor = StallMonitor()
    assert monitor.take() == []
    started = time.monotonic()
    while time.monotonic() - started < 0.1:  # blocks the loop
        pass
    stalls: list[float] = []
    await until_async(lambda: stalls.extend(monitor.take()) or stalls)
    assert stalls[0] >= 0.05
    monitor.stop()
