"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from engine_server.requests.outputs import CompletionOutput
from engine_server.server.engine_host import EngineHost, Trace
from engine_server.server.generation import IndexedOutput, generate
from engine_server.server.models import check_model
from engine_server.server.prompts import completion_prompt
from engine_server.server.protocol import CompletionRequest
from engine_server.server.replies import (
    Answer,
    Chunks,
    CompletionChoice,
    Usage,
    WholeAnswer,
    completion_logprobs,
    json_response,
)
from engine_server.server.sse import EventStream


async def complete(host: EngineHost, request: CompletionRequest, trace: Trace) -> Response:
    check_model(host, request.model)
    params = request.sampling_params()
    prompts = [await completion_prompt(host.engine, prompt) for prompt in request.prompt]
    answer = Answer(f"cmpl-{uuid.uuid4().hex}", "text_completion", int(time.time()), request.model)
    usage = Usage()
    outputs = generate(host.engine, answer.id, prompts, params, usage, trace)
    if request.stream:
        return EventStream(_events(outputs, Chunks(answer, request.include_usage), usage))
    choices = []
    async with aclosing(outputs):
        async for index, output in outputs:
            choices.append(_choice(index, output, 0))
    choices.sort(key=lambda choice: choice.index)
    return json_response(WholeAnswer(answer.id, answer.object, answer.created, answer.model, choices, usage))


async def _events(
    outputs: AsyncGenerator[IndexedOutput, None], chunks: Chunks, usage: Usage
) -> AsyncGenerator[bytes, None]:
    offsets: dict[int, int] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            if output.text or output.logprobs or output.finish_reason:
                choice = _choice(index, output, offsets.get(index, 0))
                if choice.logprobs is not None:
                    offsets[index] = offsets.get(index, 0) + sum(map(len, choice.logprobs.tokens))
                yield chunks.choice(choice)
    yield chunks.usage(usage)


def _choice(index: int, output: CompletionOutput, offset: int) -> CompletionChoice:
    choice = CompletionChoice(index, output.text)
    if output.logprobs:
        choice.logprobs = completion_logprobs(output.logprobs, offset)
    if output.finish_reason:
        choice.finish_reason = output.finish_reason
        choice.stop_reason = output.stop_reason
    return choice
