"""Waiting for conditions that other processes, threads and tasks bring about."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
# In seconds; ample on a busy machine.
PATIENCE = 120.0
LONGEST_PAUSE = 0.05


class NotYetError(Exception):
    """The object that a question is about does not exist yet, or has not begun to report."""


def until(question: Callable[[], T], what: str = "", seconds: float = PATIENCE) -> T:
    """Ask until the answer is true, and return it; fail the test after `seconds`.

    NotYetError in the question counts as false. A question whose answer can't become true any more calls
    `pytest.fail`. At most half of the time is spent on asking, since some questions are expensive.
    """
    end = time.monotonic() + seconds
    seen: object = None
    for pause in pauses():
        asked = time.monotonic()
        try:
            if answer := question():
                return answer
            seen = answer
        except NotYetError as error:
            seen = error
        now = time.monotonic()
        if now > end:
            break
        time.sleep(max(pause, now - asked))
    pytest.fail(f"not in {seconds:.0f} s: {what or repr(seen)}")


async def until_async(
    question: Callable[[], Any | Awaitable[Any]], what: str = "", seconds: float = PATIENCE
) -> None:
    """Ask until the answer is true while other tasks run; the question may be a coroutine function.

    NotYetError in the question counts as false.
    """
    seen: object = None
    try:
        async with asyncio.timeout(seconds) as patience:
            for pause in pauses():
                try:
                    answer = question()
                    if seen := await answer if inspect.isawaitable(answer) else answer:
                        return
                except NotYetError as error:
                    seen = error
                await asyncio.sleep(pause)
    except TimeoutError:
        if not patience.expired():
            raise
        pytest.fail(f"not in {seconds:.0f} s: {what or repr(seen)}")


def pauses() -> Iterator[float]:
    """Yield growing pauses in seconds; the first is zero and only lets others run."""
    pause = 0.0
    while True:
        yield pause
        pause = min(2 * pause + 0.001, LONGEST_PAUSE)
