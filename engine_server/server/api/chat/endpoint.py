"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from engine_server.server.api import openapi
from engine_server.server.api.chat.answer import ChatCompletion, ChatRenderer
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.models import check_model
from engine_server.server.generation.generate import Generation, generate
from engine_server.server.generation.prompts import tokenize_chat
from engine_server.server.generation.render import respond

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost, TraceHeaders

# The fields from which the engine's parameters are made, where their names differ.
ENGINE_PARAMETERS = {"prompt": "messages", "logprobs": "top_logprobs"}


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    @openapi.body(ChatRequest, ChatCompletion, streamed=True)
    async def post_chat_completions(request: Request) -> Response:
        body = parse_request(ChatRequest, await request.body())
        return await create_chat_completion(host, body, host.trace_headers(request.headers))

    return router


async def create_chat_completion(
    host: EngineHost, request: ChatRequest, trace_headers: TraceHeaders
) -> Response:
    check_model(host, request.model)
    params = request.sampling_params(host.sampling_defaults)
    prompt = await tokenize_chat(host.engine, request.turns())
    request_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
    generation = Generation(request_id, [prompt], params, trace_headers, ENGINE_PARAMETERS)
    renderer = ChatRenderer(
        request_id, created, request.model, request.top_logprobs or 0, request.include_usage
    )
    return await respond(generate(host.engine, generation), renderer, bool(request.stream))
