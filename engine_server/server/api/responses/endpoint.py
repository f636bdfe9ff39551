"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from fastapi import APIRouter, Request

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api import openapi
from engine_server.server.api.create_answer import count_tokens, create_answer
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.openai_answer import tokenizer_response
from engine_server.server.api.responses.renderer import ResponseRenderer
from engine_server.server.api.responses.request import STATELESS, ResponsesRequest
from engine_server.server.api.tokenization import decode
from engine_server.server.http.errors import ApiError
from engine_server.server.http.request_body import read_body

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.generation.plan import AnswerIdentity
    from engine_server.server.loaded_model import LoadedModel


class InputTokens(msgspec.Struct):
    """The length of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", response_model=None)
    @openapi.body(ResponsesRequest, streamed=True)
    async def post_responses(request: Request) -> Response:
        body = parse_request(ResponsesRequest, await read_body(request), host.model.takes_pictures)
        return await create_answer(host.model, body, request.headers, renderer)

    @router.post("/v1/responses/input_tokens", response_model=None)
    @openapi.body(ResponsesRequest, InputTokens)
    async def post_input_tokens(request: Request) -> Response:
        body = parse_request(ResponsesRequest, await read_body(request), host.model.takes_pictures)
        return tokenizer_response(InputTokens(await count_tokens(host.model, body, request.headers)))

    @router.get("/v1/responses/{response_id}", response_model=None)
    @router.delete("/v1/responses/{response_id}", response_model=None)
    @router.post("/v1/responses/{response_id}/cancel", response_model=None)
    @router.get("/v1/responses/{response_id}/input_items", response_model=None)
    async def refuse_stored_response(response_id: str) -> Response:
        raise ApiError(ErrorCode.UNSUPPORTED_VALUE, STATELESS, param="response_id")

    return router


def renderer(model: LoadedModel, body: ResponsesRequest, identity: AnswerIdentity) -> ResponseRenderer:
    echo = body.echo(model.sampling_defaults)
    shows_tokens = body.enable_response_messages
    return ResponseRenderer(
        identity.id,
        identity.created,
        identity.model,
        echo,
        body.top_logprobs or 0,
        body.tool_targets,
        texts=model.token_texts,
        decode=partial(decode, model.tokenizer) if shows_tokens else None,
    )
