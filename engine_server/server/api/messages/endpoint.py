"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request

from engine_server.requests.errors import InvalidRequestError
from engine_server.server.api.answers import json_response
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.answer import MessagesRenderer
from engine_server.server.api.messages.request import CountTokensRequest, MessagesRequest
from engine_server.server.api.models import check_model
from engine_server.server.generation.generate import Generation, generate, refusal
from engine_server.server.generation.prompts import tokenize_chat
from engine_server.server.generation.render import respond

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.engine_host import EngineHost, TraceHeaders

# The fields from which the engine's parameters are made, where their names differ.
ENGINE_PARAMETERS = {"prompt": "messages", "stop": "stop_sequences"}


class TokenCount(msgspec.Struct):
    """The length of a prompt."""

    input_tokens: int


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/messages", response_model=None)
    async def post_messages(request: Request) -> Response:
        body = parse_request(MessagesRequest, await request.body())
        request_id = request.scope["state"]["request_id"]
        return await create_message(host, body, host.trace_headers(request.headers), request_id)

    @router.post("/v1/messages/count_tokens", response_model=None)
    async def post_count_tokens(request: Request) -> Response:
        body = parse_request(CountTokensRequest, await request.body())
        check_model(host, body.model)
        prompt = await tokenize_chat(host.engine, body.turns())
        return json_response(TokenCount(len(prompt["prompt_token_ids"])))

    return router


async def create_message(
    host: EngineHost, request: MessagesRequest, trace_headers: TraceHeaders, request_id: str
) -> Response:
    check_model(host, request.model)
    try:
        params = request.sampling_params(host.sampling_defaults)
    except InvalidRequestError as error:
        raise refusal(error, ENGINE_PARAMETERS) from None
    prompt = await tokenize_chat(host.engine, request.turns())
    message_id = f"msg_{uuid.uuid4().hex}"
    generation = Generation(message_id, [prompt], params, trace_headers, ENGINE_PARAMETERS)
    renderer = MessagesRenderer(
        message_id, request.model, request_id, request.max_tokens, request.shows_thinking
    )
    return await respond(generate(host.engine, generation), renderer, bool(request.stream))
