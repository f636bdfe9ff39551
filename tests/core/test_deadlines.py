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
