"""Work in threads, which senders share in turns."""

import asyncio
from threading import Event

import pytest
from waiting import until_async

from engine_server.engine.loop.turns import LONG, Turns, sender


class Recorded:
    """Work of several senders that goes on until the test ends it."""

    def __init__(self, turns: Turns) -> None:
        self.begun: list[str] = []
        self._turns = turns
        self._ends: dict[str, Event] = {}

    def start(self, name: str, size: int = 0) -> asyncio.Task[str]:
        """Start work, whose name begins with its sender's."""
        self._ends[name] = Event()

        def do() -> str:
            self.begun.append(name)
            self._ends[name].wait()
            return name

        async def run() -> str:
            sender.set(name[0])
            return await self._turns.run(do, size)

        return asyncio.create_task(run())

    async def end(self, name: str) -> None:
        """End work, and wait until the next has begun."""
        count = len(self.begun)
        self._ends[name].set()
        await until_async(lambda: len(self.begun) > count)

    def end_all(self) -> None:
        for end in self._ends.values():
            end.set()


@pytest.mark.parametrize("num_threads", [1, 3])
async def test_a_newcomer_begins_when_the_first_work_of_another_ends(num_threads: int) -> None:
    recorded = Recorded(Turns(num_threads, "test"))
    tasks = [recorded.start(f"A{number}") for number in range(64)]
    await until_async(lambda: len(recorded.begun) == num_threads)
    tasks.append(recorded.start("B"))
    await asyncio.sleep(0)
    await recorded.end("A0")
    assert recorded.begun[num_threads:] == ["B"]
    recorded.end_all()
    assert await asyncio.gather(*tasks) == [*(f"A{number}" for number in range(64)), "B"]


async def test_short_work_begins_before_the_long_work_that_waits() -> None:
    recorded = Recorded(Turns(1, "test"))
    tasks = [recorded.start(f"{name}-long", LONG) for name in "ABCD"]
    await until_async(lambda: recorded.begun == ["A-long"])
    tasks.append(recorded.start("A-short", LONG - 1))
    await asyncio.sleep(0)
    await recorded.end("A-long")
    assert recorded.begun == ["A-long", "A-short"]
    recorded.end_all()
    await asyncio.gather(*tasks)


async def test_floods_of_short_and_long_work_take_turns() -> None:
    recorded = Recorded(Turns(1, "test"))
    tasks = [recorded.start(f"A{number}", LONG) for number in range(3)]
    await until_async(lambda: recorded.begun == ["A0"])
    tasks += [recorded.start(f"B{number}") for number in range(3)]
    await asyncio.sleep(0)
    for name in ("A0", "B0", "A1", "B1", "A2"):
        await recorded.end(name)
    assert recorded.begun == ["A0", "B0", "A1", "B1", "A2", "B2"]
    recorded.end_all()
    await asyncio.gather(*tasks)


async def test_one_sender_alone_has_all_threads() -> None:
    recorded = Recorded(Turns(3, "test"))
    tasks = [recorded.start(f"A{number}") for number in range(5)]
    await until_async(lambda: len(recorded.begun) == 3)
    recorded.end_all()
    await asyncio.gather(*tasks)


async def test_cancelled_work_does_not_begin_and_is_not_kept() -> None:
    turns = Turns(1, "test")
    recorded = Recorded(turns)
    running, cancelled, last = (recorded.start(name) for name in ("A0", "A1", "A2"))
    await until_async(lambda: recorded.begun == ["A0"])
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await recorded.end("A0")
    assert recorded.begun == ["A0", "A2"]
    recorded.end_all()
    await asyncio.gather(running, last)


async def test_an_error_of_the_work_is_raised_and_the_thread_is_free_again() -> None:
    turns = Turns(1, "test")

    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await turns.run(fail)
    assert await turns.run(lambda: 7) == 7


async def test_work_that_waits_is_done_after_a_close() -> None:
    turns = Turns(1, "test")
    recorded = Recorded(turns)
    tasks = [recorded.start(name) for name in ("A0", "A1")]
    await until_async(lambda: recorded.begun == ["A0"])
    turns.close()
    recorded.end_all()
    assert await asyncio.gather(*tasks) == ["A0", "A1"]
