"""Run the prompts of one HTTP request in a pooling engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.beam_search import all_or_none
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.submission import Submission
from engine_server.server.http.errors import ApiError, refusal

if TYPE_CHECKING:
    from engine_server.engine.async_llm import AsyncLLMEngine
    from engine_server.requests.outputs import PoolingRequestOutput
    from engine_server.requests.pooling_params import PoolingParams
    from engine_server.server.api.pooling.prompts import NamedPrompt
    from engine_server.server.generation.request_context import RequestContext

# Prompts of one request that are in the engine at the same time: more than a step takes, so that the next step's are
# there when it ends, and few enough that other requests wait for none but these.
CONCURRENCY = 512
# Prompts that are submitted before other tasks of the event loop run.
BURST = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """The prompts of one HTTP request."""

    request_id: str
    prompts: Sequence[NamedPrompt]
    params: PoolingParams
    context: RequestContext

    @property
    def num_tokens(self) -> int:
        return sum(prompt.num_tokens for prompt in self.prompts)


async def encode(engine: AsyncLLMEngine, batch: Batch) -> list[PoolingRequestOutput[Any]]:
    """Return the output of each prompt. When one fails or the caller is cancelled, the others are aborted.

    Raises ApiError for a prompt that the engine refuses or fails.
    """
    outputs: dict[int, PoolingRequestOutput[Any]] = {}
    waiting = iter(range(len(batch.prompts)))
    # Clients may give the same id to several requests.
    key = f"{batch.request_id}-{uuid.uuid4().hex}"

    async def work(number: int) -> None:
        for _ in range(number // BURST):
            await asyncio.sleep(0)
        for index in waiting:
            outputs[index] = await encode_one(engine, batch, index, f"{key}-{index}")

    await all_or_none(work(number) for number in range(min(len(batch.prompts), CONCURRENCY)))
    return [outputs[index] for index in range(len(batch.prompts))]


async def encode_one(
    engine: AsyncLLMEngine, batch: Batch, index: int, request_id: str
) -> PoolingRequestOutput[Any]:
    """Return the output of the prompt at `index`."""
    prompt, field = batch.prompts[index]
    results = engine.outputs(Submission(request_id, prompt, batch.params, origin=batch.context.origin))
    async with aclosing(results):
        try:
            output = cast("PoolingRequestOutput[Any]", await anext(results))
        except InvalidRequestError as error:
            raise refusal(error, {"prompt": field, "prompt_token_ids": field}) from None
    raise_if_failed(output)
    return output


def raise_if_failed(output: PoolingRequestOutput[Any]) -> None:
    """Raise ApiError for an output that ended without a result."""
    match output.finish_reason:
        case "error":
            raise ApiError(ErrorCode.REQUEST_FAILED, f"the request failed: {output.stop_reason}")
        case "abort":
            message = "the request was aborted by the server"
            raise ApiError(ErrorCode.ABORTED, message, retry_after=1)
        case "timeout":
            raise ApiError(
                ErrorCode.REQUEST_TIMEOUT, "the request's timeout passed before its result", param="timeout"
            )
