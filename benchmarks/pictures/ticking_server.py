"""`fairlead engine` with a ticker in its event loop: `python -m benchmarks.pictures.ticking_server FILE MODEL [flags]`.

FILE gets the longest times between two ticks in milliseconds, as two numbers of 8 bytes: by the clock, and without the
time for which the event loop's thread waits for a CPU. A reader may set them to 0.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from engine_server import cli
from engine_server.engine import async_llm
from engine_server.engine.loop.output_loop import OutputLoop

TICK_SECONDS = 0.001


class TickingLoop(OutputLoop):
    """The loop of the core's messages, beside a ticker."""

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        super().start(steps)
        self._ticker = asyncio.create_task(tick(longest_gaps(Path(sys.argv[1]))))


def longest_gaps(file: Path) -> np.ndarray:
    return np.memmap(file, np.float64, "r+", shape=(2,))


async def tick(longest: np.ndarray) -> None:
    schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    last, waited = time.perf_counter(), cpu_wait(schedule)
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now, waited_now = time.perf_counter(), cpu_wait(schedule)
        gap = now - last
        longest[:] = np.maximum(longest, (1e3 * gap, 1e3 * (gap - waited_now + waited)))
        last, waited = now, waited_now


def cpu_wait(schedule: Path) -> float:
    """Return the seconds for which a thread could run and had no CPU."""
    return int(schedule.read_text().split()[1]) / 1e9


if __name__ == "__main__":
    async_llm.OutputLoop = TickingLoop  # type: ignore[attr-defined]
    sys.exit(cli.main(["engine", *sys.argv[2:]]))
