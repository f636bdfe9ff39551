"""Deadlines of requests in an engine that runs no step."""

import asyncio

import pytest
from waiting import PATIENCE

from engine_server import AsyncLLMEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def finish_reason(engine: AsyncLLMEngine, request_id: str, params) -> str | None:
    async with asyncio.timeout(PATIENCE):
        async for output in engine.generate({"prompt_token_ids": [5, 6, 7]}, params, request_id):
            last = output
    return last.outputs[0].finish_reason


async def test_waiting_request_expires_while_engine_is_paused(tiny: AsyncLLMEngine, tiny_params) -> None:
    await tiny.pause_generation(mode="keep")
    params = tiny_params(timeout=0.05, max_tokens=10, ignore_eos=True)
    assert await finish_reason(tiny, "waits", params) == "timeout"
    await tiny.resume_generation()


async def test_running_request_expires_while_engine_is_paused(tiny: AsyncLLMEngine, tiny_params) -> None:
    params = tiny_params(timeout=1.0, max_tokens=250, ignore_eos=True)
    stream = tiny.generate({"prompt_token_ids": [5, 6, 7]}, params, "runs")
    first = await anext(stream)
    await tiny.pause_generation(mode="keep")
    async with asyncio.timeout(PATIENCE):
        outputs = [first, *[output async for output in stream]]
    assert outputs[-1].outputs[0].finish_reason == "timeout"
    await tiny.resume_generation()


async def test_waiting_request_expires_while_engine_sleeps(tiny: AsyncLLMEngine, tiny_params) -> None:
    await tiny.sleep(1)
    params = tiny_params(timeout=0.05, max_tokens=10, ignore_eos=True)
    assert await finish_reason(tiny, "waits", params) == "timeout"
    await tiny.wake_up()
    params = tiny_params(max_tokens=2, ignore_eos=True)
    assert await finish_reason(tiny, "runs afterwards", params) == "length"


async def test_request_held_back_by_a_waiting_pause_expires(tiny: AsyncLLMEngine, tiny_params) -> None:
    """The pause waits until the first request ends, so that the core doesn't get the others before."""
    first = tiny.generate(
        {"prompt_token_ids": [5, 6, 7]}, tiny_params(max_tokens=250, ignore_eos=True), "first"
    )
    await anext(first)
    await tiny.pause_generation(mode="keep")  # the first request stays in flight
    pause = asyncio.create_task(tiny.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    one, two = tiny_params(timeout=0.05, max_tokens=10), tiny_params(timeout=0.05, max_tokens=10, n=2)
    reasons = await asyncio.gather(finish_reason(tiny, "one", one), finish_reason(tiny, "two", two))
    assert reasons == ["timeout", "timeout"] and not pause.done()
    assert tiny.get_num_unfinished_requests() == 1
    await tiny.resume_generation()
    await pause
    await tiny.abort("first")
    assert [output async for output in first][-1].finished
    params = tiny_params(max_tokens=2, ignore_eos=True)
    assert await finish_reason(tiny, "one", params) == "length"


async def test_held_request_that_is_let_through_expires_in_the_core(
    tiny: AsyncLLMEngine, tiny_params
) -> None:
    """Its timer ends with the delay, so that the request has one last output."""
    first = tiny.generate(
        {"prompt_token_ids": [5, 6, 7]}, tiny_params(max_tokens=250, ignore_eos=True), "first"
    )
    await anext(first)
    pause = asyncio.create_task(tiny.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    params = tiny_params(timeout=1.0, max_tokens=250, ignore_eos=True)
    held = asyncio.create_task(finish_reason(tiny, "held", params))
    await tiny.abort("first")
    assert [output async for output in first][-1].finished
    await pause
    assert await held == "timeout"
    await tiny.resume_generation()
