"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request

from engine_server.server.api import openapi
from engine_server.server.api.create_answer import count_tokens, create_answer
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.messages.edited_request import edit_context
from engine_server.server.api.messages.renderer import MessagesRenderer
from engine_server.server.api.messages.request import CountTokensRequest, MessagesRequest
from engine_server.server.api.openai_answer import tokenizer_response
from engine_server.server.http.request_body import read_body

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.api.messages.context_edits import ThinkingCleared, ToolUsesCleared
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.generation.plan import AnswerIdentity
    from engine_server.server.loaded_model import LoadedModel


class OriginalCount(msgspec.Struct):
    """The length of a prompt before the edits of its conversation."""

    original_input_tokens: int


class TokenCount(msgspec.Struct):
    """The length of a prompt."""

    input_tokens: int
    # Of a request with edits of its conversation.
    context_management: OriginalCount | msgspec.UnsetType = msgspec.UNSET


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/messages", response_model=None)
    @openapi.body(MessagesRequest, streamed=True)
    async def post_messages(request: Request) -> Response:
        body = parse_request(MessagesRequest, await read_body(request), host.model.takes_pictures)
        edited = await edit_context(host.model, body, request.headers)
        new_renderer = partial(renderer, edited.applied)
        return await create_answer(host.model, edited.body, request.headers, new_renderer)

    @router.post("/v1/messages/count_tokens", response_model=None)
    @openapi.body(CountTokensRequest, TokenCount)
    async def post_count_tokens(request: Request) -> Response:
        body = parse_request(CountTokensRequest, await read_body(request), host.model.takes_pictures)
        edited = await edit_context(host.model, body, request.headers)
        count = TokenCount(await count_tokens(host.model, edited.body, request.headers))
        if edited.applied is not None:
            original = edited.original_tokens
            count.context_management = OriginalCount(count.input_tokens if original is None else original)
        return tokenizer_response(count)

    return router


def renderer(
    applied_edits: list[ToolUsesCleared | ThinkingCleared] | None,
    model: LoadedModel,
    body: MessagesRequest,
    identity: AnswerIdentity,
) -> MessagesRenderer:
    return MessagesRenderer(
        identity.id,
        identity.model,
        body.max_tokens,
        show_thinking=body.thinking is None or body.thinking.display != "omitted",
        report_cached=model.settings.enable_prompt_tokens_details,
        applied_edits=applied_edits,
    )
