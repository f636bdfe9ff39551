"""Running the prompts of one request, together, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.server.errors import ApiError
from engine_server.server.replies import Usage

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.outputs import CompletionOutput
    from engine_server.requests.prompts import TokensPrompt
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import Trace

IndexedOutput = tuple[int, "CompletionOutput"]


async def generate(
    engine: AsyncLLMEngine,
    request_id: str,
    prompts: list[TokensPrompt],
    params: SamplingParams,
    usage: Usage,
    trace: Trace,
) -> AsyncGenerator[IndexedOutput, None]:
    """The outputs of all prompts as they come, each with its choice's number; `usage` is kept up to date.

    Closing the generator aborts what is still running.
    """
    usage.prompt_tokens = sum(len(prompt["prompt_token_ids"]) for prompt in prompts)
    if len(prompts) == 1:
        outputs = _one(engine, request_id, 0, prompts[0], params, trace)
    else:
        outputs = _several(engine, request_id, prompts, params, trace)
    async with aclosing(outputs):
        async for index, output in outputs:
            usage.completion_tokens += len(output.token_ids)
            usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
            yield index, output


async def _one(
    engine: AsyncLLMEngine,
    request_id: str,
    index: int,
    prompt: TokensPrompt,
    params: SamplingParams,
    trace: Trace,
) -> AsyncGenerator[IndexedOutput, None]:
    async with aclosing(engine.generate(prompt, params, request_id, trace_headers=trace)) as stream:
        async for result in stream:
            for output in result.outputs:
                if output.finish_reason == "error":
                    raise ApiError(
                        500, f"the request failed: {output.stop_reason}", code=ErrorCode.REQUEST_FAILED
                    )
                if output.finish_reason == "abort":
                    raise ApiError(
                        503, "the request was aborted by the server", code=ErrorCode.ABORTED, retry_after=1
                    )
                yield index * params.n + output.index, output


async def _several(
    engine: AsyncLLMEngine, request_id: str, prompts: list[TokensPrompt], params: SamplingParams, trace: Trace
) -> AsyncGenerator[IndexedOutput, None]:
    ready: asyncio.Queue[IndexedOutput | Exception | None] = asyncio.Queue()

    async def feed(index: int, prompt: TokensPrompt) -> None:
        try:
            async with aclosing(
                _one(engine, f"{request_id}-{index}", index, prompt, params, trace)
            ) as outputs:
                async for output in outputs:
                    ready.put_nowait(output)
        except Exception as error:
            ready.put_nowait(error)
        else:
            ready.put_nowait(None)

    feeds = [asyncio.create_task(feed(index, prompt)) for index, prompt in enumerate(prompts)]
    open_feeds = len(feeds)
    try:
        while open_feeds:
            match await ready.get():
                case None:
                    open_feeds -= 1
                case Exception() as error:
                    raise error
                case output:
                    yield output
    finally:
        for task in feeds:
            task.cancel()
        await asyncio.wait(feeds)
