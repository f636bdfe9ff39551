"""POST /v1/embeddings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.pooling_params import PoolingParams, prompt_before
from engine_server.server.api import openapi
from engine_server.server.api.context import request_context
from engine_server.server.api.fields import only
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.openai_answer import PromptUsage, prompt_response
from engine_server.server.api.pooling.encode import Batch, encode
from engine_server.server.api.pooling.named_prompts import prompt_for
from engine_server.server.api.pooling.prompts import input_prompts
from engine_server.server.api.pooling.request import EncodingFormat, InputRequest
from engine_server.server.api.pooling.vectors import encode_numbers, reserve_answer
from engine_server.server.api.tasks import needs_task
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.config import PoolingConfig
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel


class VectorRequest(InputRequest):
    """The fields of requests for vectors."""

    # One of the model's prompts, by its name or by the kind of input that it is for.
    prompt_name: str | None = None
    input_type: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: int | None = None
    use_activation: bool | None = None

    embed_dtype: Annotated[Any, only("float32")] = None
    endianness: Annotated[Any, only("little", "native")] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.prompt_name is not None and self.input_type is not None:
            raise ApiError(
                ErrorCode.INVALID_VALUE, "prompt_name and input_type exclude each other", param="input_type"
            )
        names = {"prompt_name": self.prompt_name, "input_type": self.input_type}
        given = next((name for name, value in names.items() if value is not None), None)
        if given is not None and not isinstance((self.input or [None])[0], str):
            message = f"{given} chooses what is put before texts; the input is none"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=given)

    def prompt(self, pooling: PoolingConfig) -> str:
        """Return the text that is put before each text. Raises ApiError or InvalidRequestError for an unknown one."""
        if self.input_type is not None:
            return prompt_for(pooling, self.input_type)
        return prompt_before(pooling, self.prompt_name)


class EmbeddingRequest(VectorRequest):
    """The body of a request."""

    # The older name of use_activation.
    normalize: bool | None = None

    def pooling_params(self, timeout: float | None) -> PoolingParams:
        return PoolingParams(
            task="embed",
            dimensions=self.dimensions,
            normalize=self.normalize,
            use_activation=self.use_activation,
            timeout=timeout,
        )


class Embedding(msgspec.Struct):
    """The embedding of one input: a list of numbers, or base64."""

    index: int
    embedding: msgspec.Raw
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    """An answer."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PromptUsage
    object: Literal["list"] = "list"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter(dependencies=[needs_task(host, "embed")])

    @router.post("/v1/embeddings", response_model=None)
    @openapi.body(EmbeddingRequest, EmbeddingList)
    async def post_embeddings(request: Request) -> Response:
        body = parse_request(EmbeddingRequest, await request.body())
        return await create_embeddings(host.model, body, request.headers)

    return router


async def create_embeddings(
    model: LoadedModel, request: EmbeddingRequest, headers: Mapping[str, str]
) -> Response:
    context = request_context(model, request, headers)
    params = request.pooling_params(context.timeout)
    request_id, created = request.answer_id("embd-"), int(time.time())
    prompts = await input_prompts(model, request, request.prompt(model.pooling))
    batch = Batch(request_id, prompts, params, context)
    reserve_answer(model, params, batch, request.encoding_format)
    outputs = await encode(model.engine, batch)
    vectors = await encode_numbers(outputs, request.encoding_format or "float")
    data = [Embedding(index, vector) for index, vector in enumerate(vectors)]
    answer = EmbeddingList(request_id, created, context.served.name, data, PromptUsage.of(batch.num_tokens))
    return prompt_response(answer, batch.num_tokens, context.served.fingerprint)
