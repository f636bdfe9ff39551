"""POST /v1/chat/completions and /v1/chat/completions/batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from engine_server.server.api import openapi
from engine_server.server.api.chat.answer import ChatCompletion
from engine_server.server.api.chat.request import BatchChatRequest, ChatRequest
from engine_server.server.api.create_answer import create_answer
from engine_server.server.api.generation_request import parse_request

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    @openapi.body(ChatRequest, ChatCompletion, streamed=True)
    async def post_chat_completions(request: Request) -> Response:
        body = parse_request(ChatRequest, await request.body())
        return await create_answer(host, body, request.headers)

    @router.post("/v1/chat/completions/batch", response_model=None)
    @openapi.body(BatchChatRequest, ChatCompletion)
    async def post_chat_completions_batch(request: Request) -> Response:
        body = parse_request(BatchChatRequest, await request.body())
        return await create_answer(host, body, request.headers)

    return router
