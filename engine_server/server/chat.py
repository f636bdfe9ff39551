"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.outputs import CompletionOutput
from engine_server.server.engine_host import EngineHost, Trace
from engine_server.server.errors import ApiError
from engine_server.server.generation import IndexedOutput, generate
from engine_server.server.models import check_model
from engine_server.server.prompts import chat_prompt
from engine_server.server.protocol import ChatCompletionRequest
from engine_server.server.replies import (
    Answer,
    ChatChoice,
    ChatDelta,
    ChatDeltaChoice,
    ChatLogprobs,
    ChatMessage,
    Chunks,
    Usage,
    WholeAnswer,
    chat_logprobs,
    json_response,
)
from engine_server.server.sse import EventStream


async def chat(host: EngineHost, request: ChatCompletionRequest, trace: Trace) -> Response:
    check_model(host, request.model)
    params = request.sampling_params()
    prompt = await chat_prompt(host.engine, request)
    answer = Answer(f"chatcmpl-{uuid.uuid4().hex}", "chat.completion", int(time.time()), request.model)
    usage = Usage()
    outputs = _told_in_chat_terms(generate(host.engine, answer.id, [prompt], params, usage, trace))
    top = request.top_logprobs or 0
    if request.stream:
        answer.object = "chat.completion.chunk"
        return EventStream(_events(outputs, Chunks(answer, request.include_usage), usage, top, params.n))
    choices = []
    async with aclosing(outputs):
        async for index, output in outputs:
            message = ChatMessage(content=output.text)
            choices.append(
                ChatChoice(index, message, _logprobs(output, top), output.finish_reason, output.stop_reason)
            )
    return json_response(WholeAnswer(answer.id, answer.object, answer.created, answer.model, choices, usage))


async def _events(
    outputs: AsyncGenerator[IndexedOutput, None], chunks: Chunks, usage: Usage, top: int, n: int
) -> AsyncGenerator[bytes, None]:
    role = ChatDelta(role="assistant", content="")
    openings = {index: chunks.choice(ChatDeltaChoice(index, role)) for index in range(n)}
    async with aclosing(outputs):
        async for index, output in outputs:
            event = openings.pop(index, b"")
            if output.text or output.logprobs:
                event += chunks.choice(
                    ChatDeltaChoice(index, ChatDelta(content=output.text), _logprobs(output, top))
                )
            if output.finish_reason:
                finish = ChatDeltaChoice(index, ChatDelta())
                finish.finish_reason, finish.stop_reason = output.finish_reason, output.stop_reason
                event += chunks.choice(finish)
            if event:
                yield event
    yield chunks.usage(usage)


async def _told_in_chat_terms(
    outputs: AsyncGenerator[IndexedOutput, None],
) -> AsyncGenerator[IndexedOutput, None]:
    """The engine speaks of a prompt, where this client sent messages."""
    async with aclosing(outputs):
        try:
            async for output in outputs:
                yield output
        except InvalidRequestError as error:
            param = "messages" if error.parameter == "prompt" else error.parameter
            raise ApiError(400, str(error), param=param) from None


def _logprobs(output: CompletionOutput, top: int) -> ChatLogprobs | None:
    return chat_logprobs(output.logprobs, top) if output.logprobs else None
