"""Deadlines of requests in a core that runs no step."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from waiting import PATIENCE

from engine_server import AsyncEngineArgs, AsyncLLMEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tiny_llama: Path) -> AsyncIterator[AsyncLLMEngine]:
    arguments = AsyncEngineArgs(
        model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=64,
        disable_log_stats=True,
    )  # fmt: skip
    engine = AsyncLLMEngine.from_engine_args(arguments)
    yield engine
    engine.shutdown()


async def finish_reason(engine: AsyncLLMEngine, request_id: str, params) -> str | None:
    async with asyncio.timeout(PATIENCE):
        async for output in engine.generate({"prompt_token_ids": [5, 6, 7]}, params, request_id):
            last = output
    return last.outputs[0].finish_reason


async def test_waiting_request_expires_while_engine_is_paused(engine: AsyncLLMEngine, tiny_params) -> None:
    await engine.pause_generation(mode="keep")
    params = tiny_params(timeout=0.05, max_tokens=10, ignore_eos=True)
    assert await finish_reason(engine, "waits", params) == "timeout"
    await engine.resume_generation()


async def test_running_request_expires_while_engine_is_paused(engine: AsyncLLMEngine, tiny_params) -> None:
    params = tiny_params(timeout=1.0, max_tokens=250, ignore_eos=True)
    stream = engine.generate({"prompt_token_ids": [5, 6, 7]}, params, "runs")
    first = await anext(stream)
    await engine.pause_generation(mode="keep")
    async with asyncio.timeout(PATIENCE):
        outputs = [first, *[output async for output in stream]]
    assert outputs[-1].outputs[0].finish_reason == "timeout"
    await engine.resume_generation()


async def test_waiting_request_expires_while_engine_sleeps(engine: AsyncLLMEngine, tiny_params) -> None:
    await engine.sleep(1)
    params = tiny_params(timeout=0.05, max_tokens=10, ignore_eos=True)
    assert await finish_reason(engine, "waits", params) == "timeout"
    await engine.wake_up()
    params = tiny_params(max_tokens=2, ignore_eos=True)
    assert await finish_reason(engine, "runs afterwards", params) == "length"


async def test_request_held_back_by_a_waiting_pause_expires(engine: AsyncLLMEngine, tiny_params) -> None:
    """The pause waits until the first request ends, so that the core doesn't get the others before."""
    first = engine.generate(
        {"prompt_token_ids": [5, 6, 7]}, tiny_params(max_tokens=250, ignore_eos=True), "first"
    )
    await anext(first)
    await engine.pause_generation(mode="keep")  # the first request stays in flight
    pause = asyncio.create_task(engine.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    one, two = tiny_params(timeout=0.05, max_tokens=10), tiny_params(timeout=0.05, max_tokens=10, n=2)
    reasons = await asyncio.gather(finish_reason(engine, "one", one), finish_reason(engine, "two", two))
    assert reasons == ["timeout", "timeout"] and not pause.done()
    assert engine.get_num_unfinished_requests() == 1
    await engine.resume_generation()
    await pause
    await engine.abort("first")
    assert [output async for output in first][-1].finished
    params = tiny_params(max_tokens=2, ignore_eos=True)
    assert await finish_reason(engine, "one", params) == "length"


async def test_held_request_that_is_let_through_expires_in_the_core(
    engine: AsyncLLMEngine, tiny_params
) -> None:
    """Its timer ends with the delay, so that the request has one last output."""
    first = engine.generate(
        {"prompt_token_ids": [5, 6, 7]}, tiny_params(max_tokens=250, ignore_eos=True), "first"
    )
    await anext(first)
    pause = asyncio.create_task(engine.pause_generation(mode="wait"))
    await asyncio.sleep(0)  # so that it begins
    params = tiny_params(timeout=1.0, max_tokens=250, ignore_eos=True)
    held = asyncio.create_task(finish_reason(engine, "held", params))
    await engine.abort("first")
    assert [output async for output in first][-1].finished
    await pause
    assert await held == "timeout"
    await engine.resume_generation()
