"""How the tests wait for what other processes, threads and tasks bring about."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
PATIENCE = 120.0  # seconds; ample on a busy machine
LONGEST_PAUSE = 0.05


def until(question: Callable[[], T], what: str = "", seconds: float = PATIENCE) -> T:
    """The first true answer. An assertion or a lookup that fails in the question is no answer yet; for what can't
    come true any more, it calls `pytest.fail`. It asks at most half of the time, as some questions are work."""
    end = time.monotonic() + seconds
    seen: object = None
    for pause in pauses():
        asked = time.monotonic()
        try:
            if answer := question():
                return answer
            seen = answer
        except (AssertionError, LookupError) as error:
            seen = error
        now = time.monotonic()
        if now > end:
            break
        time.sleep(max(pause, now - asked))
    pytest.fail(f"not in {seconds:.0f} s: {what or repr(seen)}")


async def until_async(question: Callable[[], Any | Awaitable[Any]], seconds: float = PATIENCE) -> None:
    """Until the answer is true, while other tasks run on; the question may be a coroutine function."""
    async with asyncio.timeout(seconds):
        for pause in pauses():
            answer = question()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(pause)


def pauses() -> Iterator[float]:
    """In seconds; the first lets others run and no more, then each is longer."""
    pause = 0.0
    while True:
        yield pause
        pause = min(2 * pause + 0.001, LONGEST_PAUSE)
