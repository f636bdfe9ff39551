"""POST /v1/chat/completions and /v1/chat/completions/batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from engine_server.server.api import openapi
from engine_server.server.api.chat.renderer import ChatCompletion, ChatRenderer, Opening
from engine_server.server.api.chat.request import BatchChatRequest, ChatFields, ChatRequest
from engine_server.server.api.chat.tools import NamedTool
from engine_server.server.api.create_answer import create_answer
from engine_server.server.api.generation_request import parse_request
from engine_server.server.http.request_body import read_body

if TYPE_CHECKING:
    from starlette.responses import Response

    from engine_server.server.api.chat.messages import Message
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.generation.plan import AnswerIdentity
    from engine_server.server.loaded_model import LoadedModel


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    @openapi.body(ChatRequest, ChatCompletion, streamed=True)
    async def post_chat_completions(request: Request) -> Response:
        body = parse_request(ChatRequest, await read_body(request), host.model.takes_pictures)
        return await create_answer(host.model, body, request.headers, renderer)

    @router.post("/v1/chat/completions/batch", response_model=None)
    @openapi.body(BatchChatRequest, ChatCompletion)
    async def post_chat_completions_batch(request: Request) -> Response:
        body = parse_request(BatchChatRequest, await read_body(request), host.model.takes_pictures)
        return await create_answer(host.model, body, request.headers, renderer)

    return router


def renderer(model: LoadedModel, body: ChatFields, identity: AnswerIdentity) -> ChatRenderer:
    return ChatRenderer(
        identity,
        body.answer_options(model.settings),
        [opening(body, messages) for messages in body.conversations],
        choices_per_prompt=body.n or 1,
        top_logprobs=body.top_logprobs or 0,
        prompt_text=bool(body.return_prompt_text),
        names_tool=isinstance(body.tool_choice, NamedTool),
        texts=model.token_texts,
    )


def opening(body: ChatFields, messages: list[Message]) -> Opening:
    """Return the answer's role and the text it begins with: its own, or those of the message that it continues."""
    last = messages[-1]
    role = "assistant" if body.opens_answer else last.role
    return Opening(role, last.text if body.echo and last.role == role else "")
