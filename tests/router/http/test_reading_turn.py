"""The bytes that all connections read before others have their turn."""

import asyncio
import json

from engine_server.router.http.reading_turn import MOST_BYTES, ReadingTurn


async def test_connections_read_on_in_the_next_turn_once_all_have_read_much():
    reading = ReadingTurn()

    assert not reading.add(MOST_BYTES)
    assert reading.add(1) and reading.add(1)

    await asyncio.sleep(0)
    assert not reading.add(1)
    assert reading.add(MOST_BYTES)


async def test_large_bodies_arrive_whole_while_others_have_their_turns(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    texts = [str(number) * 3 * MOST_BYTES for number in range(3)]

    async def ask(text):
        async with router.chat(messages=[{"role": "user", "content": text}]) as answer:
            assert answer.status == 200

    await asyncio.gather(*map(ask, texts))

    assert {json.loads(request.body)["messages"][0]["content"] for request in engine.received} == set(texts)
