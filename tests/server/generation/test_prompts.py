"""The threads in which long texts of clients are tokenized."""

import asyncio
from threading import Event

from waiting import until_async

from engine_server.engine.loop.turns import sender
from engine_server.server.generation.threads import LONG_TEXT, THREADS, run_by_size


async def test_long_texts_of_one_sender_do_not_delay_the_first_of_another() -> None:
    begun: list[str] = []
    first_ends, others_end = Event(), Event()

    async def tokenize(name: str, end: Event) -> None:
        def work() -> None:
            begun.append(name)
            end.wait()

        sender.set(name)
        await run_by_size(LONG_TEXT, work)

    num_threads = THREADS.num_threads
    tasks = [asyncio.create_task(tokenize("A", first_ends))]
    tasks += [asyncio.create_task(tokenize("A", others_end)) for _ in range(63)]
    await until_async(lambda: len(begun) == num_threads)
    tasks.append(asyncio.create_task(tokenize("B", others_end)))
    await asyncio.sleep(0)
    first_ends.set()
    await until_async(lambda: len(begun) > num_threads)
    assert begun[num_threads:] == ["B"]
    others_end.set()
    await asyncio.gather(*tasks)
