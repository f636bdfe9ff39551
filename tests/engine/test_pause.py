"""Pauses of the asynchronous engine, in every mode, and deadlines of requests while no step runs."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from async_engines import Watcher, drain, prompt
from waiting import PATIENCE, until_async

from engine_server import AsyncLLMEngine
from engine_server.requests.outputs import RequestOutput

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def pause_in_flight(engine: AsyncLLMEngine, params, request_id: str) -> AsyncIterator[RequestOutput]:
    """Pause the engine in mode keep while a request runs, and return the rest of the request's stream."""
    stream = engine.generate(prompt(20), params, request_id)

    async def paused() -> bool:
        nonlocal stream
        await anext(stream)
        await engine.pause_generation(mode="keep")
        if engine.get_num_unfinished_requests() == 1:
            return True
        # It has ended before the pause.
        await engine.resume_generation()
        stream = engine.generate(prompt(20), params, request_id)
        return False

    await until_async(paused)
    return stream


async def test_pause_in_mode_keep_continues_requests_after_resume(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    params = tiny_params(max_tokens=200, ignore_eos=True, seed=1)
    whole = (await drain(tiny.generate(prompt(20), params, "whole")))[-1].outputs[0].token_ids
    kept = await pause_in_flight(tiny, params, "kept")
    assert await tiny.is_paused()
    late = asyncio.create_task(drain(tiny.generate(prompt(20), params, "late")))
    await until_async(lambda: watcher.latest.num_waiting == 1)
    assert watcher.latest.num_running == 1 and tiny.get_num_unfinished_requests() == 2
    await tiny.resume_generation()
    assert (await drain(kept))[-1].outputs[0].token_ids == whole
    assert (await late)[-1].outputs[0].token_ids == whole


async def test_pause_in_mode_wait_finishes_requests_and_holds_new_ones(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    stream = tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "before")
    first = await anext(stream)
    pause = asyncio.create_task(tiny.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    held = asyncio.create_task(drain(tiny.generate(prompt(20), tiny_params(max_tokens=3), "held")))
    gone = asyncio.create_task(drain(tiny.generate(prompt(20), tiny_params(max_tokens=3), "gone")))
    assert [first, *await drain(stream)][-1].outputs[0].finish_reason == "length"
    await until_async(lambda: tiny.get_num_unfinished_requests() == 2)
    await tiny.abort("gone")
    assert (await gone)[-1].outputs[0].finish_reason == "abort"
    await pause
    await until_async(lambda: (watcher.latest.num_running, watcher.latest.num_waiting) == (0, 1))
    await tiny.resume_generation()
    await tiny.wait_for_requests_to_drain()
    assert (await held)[-1].finished


async def test_pause_in_mode_abort_ends_requests_and_keeps_new_ones_waiting(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    stream = tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "cut")
    await anext(stream)
    await tiny.pause_generation()
    assert (await drain(stream))[-1].outputs[0].finish_reason == "abort"
    with pytest.raises(ValueError, match="abort, wait or keep"):
        await tiny.pause_generation(mode="stop")
    late = asyncio.create_task(drain(tiny.generate(prompt(20), tiny_params(max_tokens=2), "late")))
    await until_async(lambda: watcher.latest.num_waiting == 1)
    with pytest.raises(TimeoutError):
        await tiny.wait_for_requests_to_drain(drain_timeout=0)
    await tiny.resume_generation()
    assert (await late)[-1].finished


async def test_requests_run_after_a_pause_in_mode_wait_is_cancelled(
    tiny: AsyncLLMEngine, tiny_params
) -> None:
    stream = tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "before")
    await anext(stream)
    pause = asyncio.create_task(tiny.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    held = asyncio.create_task(drain(tiny.generate(prompt(20), tiny_params(max_tokens=3), "held")))
    await until_async(lambda: tiny.get_num_unfinished_requests() == 2)
    pause.cancel()
    assert (await held)[-1].finished
    assert (await drain(tiny.generate(prompt(5), tiny_params(max_tokens=2), "later")))[-1].finished
    assert not await tiny.is_paused()
    await stream.aclose()


async def test_requests_run_after_two_concurrent_pauses_in_mode_wait(
    tiny: AsyncLLMEngine, watcher: Watcher, tiny_params
) -> None:
    stream = tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "before")
    first = await anext(stream)
    pauses, requests = [], []
    for number in range(2):  # a request behind each pause
        pauses.append(asyncio.create_task(tiny.pause_generation(mode="wait")))
        await asyncio.sleep(0)
        generated = tiny.generate(prompt(20), tiny_params(max_tokens=3), f"held {number}")
        requests.append(asyncio.create_task(drain(generated)))
    assert [first, *await drain(stream)][-1].outputs[0].finish_reason == "length"
    await asyncio.gather(*pauses)
    await until_async(lambda: (watcher.latest.num_running, watcher.latest.num_waiting) == (0, 2))
    await tiny.resume_generation()
    assert all(outputs[-1].finished for outputs in await asyncio.gather(*requests))


async def test_resume_cancels_a_pause_that_still_waits(tiny: AsyncLLMEngine, tiny_params) -> None:
    stream = tiny.generate(prompt(20), tiny_params(max_tokens=200, ignore_eos=True), "before")
    await anext(stream)
    pause = asyncio.create_task(tiny.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    held = asyncio.create_task(drain(tiny.generate(prompt(20), tiny_params(max_tokens=3), "held")))
    await until_async(lambda: tiny.get_num_unfinished_requests() == 2)
    await tiny.resume_generation()
    assert (await held)[-1].finished
    await tiny.abort("before")
    await drain(stream)
    await pause
    assert not await tiny.is_paused()
    assert (await drain(tiny.generate(prompt(5), tiny_params(max_tokens=2), "later")))[-1].finished


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
    params = tiny_params(timeout=1.0, max_tokens=200, ignore_eos=True)
    stream = await pause_in_flight(tiny, params, "runs")
    assert (await drain(stream))[-1].outputs[0].finish_reason == "timeout"
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
    first = await pause_in_flight(tiny, tiny_params(max_tokens=200, ignore_eos=True), "first")
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
