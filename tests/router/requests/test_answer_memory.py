"""What streams hold is bounded by the router's memory, with a share for each deployment."""

import asyncio

from resumable_streams import Stream, chunk, event

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.continuation import TokenReport
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.requests.answer_memory import FREE_BYTES, AnswerMemory
from engine_server.router.requests.journal import FREE_TOKENS, Journal

BUFFER_BYTES = 4_000_000
STREAMS = 8


def test_only_what_exceeds_the_free_bytes_is_claimed_and_returns():
    budget = BodyBudget(10 * FREE_BYTES)
    memory = AnswerMemory(budget, Key("default", "m"))
    for size, used in (
        (0, 0),
        (FREE_BYTES, 0),
        (FREE_BYTES + 1, FREE_BYTES),
        (3 * FREE_BYTES, 2 * FREE_BYTES),
        (1, 0),
    ):
        assert memory.cover(size)
        assert budget.used == used


def test_a_stream_whose_tokens_find_no_memory_goes_on_and_is_not_resumed():
    journal = Journal(fingerprint=b"m", memory=AnswerMemory(BodyBudget(FREE_BYTES), Key("default", "m")))
    journal.record(TokenReport(1, [1] * FREE_TOKENS, 1, id="a", created=1))
    assert journal.state.resumable
    journal.record(TokenReport(1, [1], 1))
    assert not journal.state.resumable and not journal.token_ids


async def test_a_stream_whose_unfinished_events_find_no_room_is_broken_off(
    start_engine, start_router, eventually
):
    async def endless(engine, request, writer, number):
        chunk(writer, b"data: " + b"x" * 2_000_000)
        await asyncio.Event().wait()

    async def behave(engine, request, writer):
        await Stream(1, failure=endless)(engine, request, writer)

    hostile, other = await start_engine(behave), await start_engine(Stream())
    router = await start_router({"m": [hostile], "other": [other]}, buffer_bytes=BUFFER_BYTES)
    streams = [asyncio.create_task(read_rest(router)) for _ in range(STREAMS)]
    await eventually(lambda: sum(task.done() for task in streams) >= STREAMS - 2)
    assert await router.metric("fairlead_router_buffer_bytes") <= BUFFER_BYTES
    for task in streams:
        if task.done():
            assert (await task).startswith(event(0)) and b'"buffer_full"' in await task
    reason = r'fairlead_router_rejected_total\{reason="no_memory",sender="engine"\}'
    assert await router.metric(reason) >= STREAMS - 2
    async with router.chat("other") as response:
        assert response.status == 200
        await response.read()
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)

    async def all_is_returned() -> bool:
        return await router.metric("fairlead_router_buffer_bytes") == 0

    await eventually(all_is_returned)


async def read_rest(router) -> bytes:
    async with router.chat(stream=True) as response:
        return await response.read()
