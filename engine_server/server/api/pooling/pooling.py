"""POST /pooling: the numbers of any task, by default each token's hidden state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from fastapi import APIRouter, Request

from engine_server.contract.base.bounds import POOLED_TOKENS
from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.pooling_params import PoolingParams, PoolingTask
from engine_server.server.api import openapi
from engine_server.server.api.context import request_context
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.openai_answer import PromptUsage, prompt_response
from engine_server.server.api.pooling.embeddings import VectorRequest
from engine_server.server.api.pooling.encode import Batch, encode
from engine_server.server.api.pooling.prompts import input_prompts
from engine_server.server.api.pooling.vectors import encode_numbers, reserve_answer
from engine_server.server.api.tasks import needs_task
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel


class PooledRequest(VectorRequest):
    """The body of a request."""

    task: PoolingTask | None = None

    def pooling_params(self, timeout: float | None) -> PoolingParams:
        return PoolingParams(
            task=self.task or "encode",
            dimensions=self.dimensions,
            use_activation=self.use_activation,
            timeout=timeout,
        )


class Pooled(msgspec.Struct):
    """The numbers of one input: for the task encode a list for each token; or base64."""

    index: int
    data: msgspec.Raw
    object: Literal["pooling"] = "pooling"


class PooledList(msgspec.Struct):
    """An answer."""

    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: PromptUsage
    object: Literal["list"] = "list"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter(dependencies=[needs_task(host, "encode")])

    @router.post("/pooling", response_model=None)
    @openapi.body(PooledRequest, PooledList)
    async def post_pooling(request: Request) -> Response:
        body = parse_request(PooledRequest, await request.body())
        return await create_pooled(host.model, body, request.headers)

    return router


async def create_pooled(model: LoadedModel, request: PooledRequest, headers: Mapping[str, str]) -> Response:
    context = request_context(model, request, headers)
    params = request.pooling_params(context.timeout)
    request_id, created = request.answer_id("pool-"), int(time.time())
    prompts = await input_prompts(model, request, request.prompt(model.pooling))
    batch = Batch(request_id, prompts, params, context)
    several = params.task == "encode" and len(prompts) > 1
    if several and (message := POOLED_TOKENS.exceeded(batch.num_tokens)):
        raise ApiError(ErrorCode.INVALID_VALUE, f"input: {message}", param="input")
    reserve_answer(model, params, batch, request.encoding_format)
    outputs = await encode(model.engine, batch)
    numbers = await encode_numbers(outputs, request.encoding_format or "float")
    data = [Pooled(index, one) for index, one in enumerate(numbers)]
    answer = PooledList(request_id, created, context.served.name, data, PromptUsage.of(batch.num_tokens))
    return prompt_response(answer, batch.num_tokens, context.served.fingerprint)
