"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request

from engine_server.server.api import openapi
from engine_server.server.api.answers import json_response
from engine_server.server.api.create_answer import create_answer
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.request import CountTokensRequest, MessagesRequest
from engine_server.server.api.models import served_model

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost


class TokenCount(msgspec.Struct):
    """The length of a prompt."""

    input_tokens: int


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/messages", response_model=None)
    @openapi.body(MessagesRequest, streamed=True)
    async def post_messages(request: Request) -> Response:
        body = parse_request(MessagesRequest, await request.body())
        return await create_answer(host, body, request.headers)

    @router.post("/v1/messages/count_tokens", response_model=None)
    @openapi.body(CountTokensRequest, TokenCount)
    async def post_count_tokens(request: Request) -> Response:
        body = parse_request(CountTokensRequest, await request.body())
        model = served_model(host, body.model, request.headers)
        prompt = await body.prompt(host, model.context)
        return json_response(TokenCount(len(prompt["prompt_token_ids"])))

    return router
