"""POST /classify."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
from fastapi import APIRouter, Request

from engine_server.requests.pooling_params import PoolingParams
from engine_server.server.api import openapi
from engine_server.server.api.context import request_context
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.openai_answer import PromptUsage, prompt_response
from engine_server.server.api.pooling.encode import Batch, encode
from engine_server.server.api.pooling.prompts import input_prompts
from engine_server.server.api.pooling.request import InputRequest
from engine_server.server.api.tasks import needs_task

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel


class ClassificationRequest(InputRequest):
    """The body of a request."""

    use_activation: bool | None = None


class Classification(msgspec.Struct):
    """The scores of one input, and the label of the highest."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(msgspec.Struct):
    """An answer."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PromptUsage
    object: Literal["list"] = "list"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter(dependencies=[needs_task(host, "classify")])

    @router.post("/classify", response_model=None)
    @openapi.body(ClassificationRequest, ClassificationList)
    async def post_classify(request: Request) -> Response:
        body = parse_request(ClassificationRequest, await request.body())
        return await create_classification(host.model, body, request.headers)

    return router


async def create_classification(
    model: LoadedModel, request: ClassificationRequest, headers: Mapping[str, str]
) -> Response:
    context = request_context(model, request, headers)
    params = PoolingParams(task="classify", use_activation=request.use_activation, timeout=context.timeout)
    request_id, created = request.answer_id("classify-"), int(time.time())
    prompts = await input_prompts(model, request)
    batch = Batch(request_id, prompts, params, context)
    outputs = await encode(model.engine, batch)
    data = [to_classification(model, index, output.outputs.probs) for index, output in enumerate(outputs)]
    answer = ClassificationList(
        request_id, created, context.served.name, data, PromptUsage.of(batch.num_tokens)
    )
    return prompt_response(answer, batch.num_tokens, context.served.fingerprint)


def to_classification(model: LoadedModel, index: int, probs: list[float]) -> Classification:
    label = model.pooling.labels[max(range(len(probs)), key=probs.__getitem__)]
    return Classification(index, label, probs, len(probs))
