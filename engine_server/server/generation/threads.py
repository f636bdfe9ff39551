"""The threads in which long work of requests is done, so that other streams go on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from engine_server.engine.input.prompt_times import PromptTimes
from engine_server.engine.loop.turns import Turns
from engine_server.modeling.platform.cpu_quota import available_cpus

# In characters; longer texts take more than about 10 ms.
LONG_TEXT = 20_000

# Others than those of asyncio, in which small work of the server must not wait for long texts. They leave half of the
# cores to streams.
THREADS = Turns(max(1, available_cpus() // 2), "tokenize")

T = TypeVar("T")


async def run_by_size(size: int, work: Callable[[], T], times: PromptTimes | None = None) -> T:
    """Run `work` at once, or in a thread, in turns, if its input has `LONG_TEXT` characters or more.

    times: takes the wait for the turn.
    """
    if size < LONG_TEXT:
        return work()
    asked = perf_counter()

    def run() -> T:
        if times is not None:
            times.add_wait(perf_counter() - asked)
        return work()

    return await THREADS.run(run, size)
