"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field, PlainValidator
from starlette.responses import Response

from engine_server.server.api import openapi
from engine_server.server.api.answers import LOWEST_LOGPROB, AnswerHead, ChunkEncoder, StopReason, UsageBody
from engine_server.server.api.fields import MAX_CHOICES, only, prompt_list
from engine_server.server.api.generation_request import GenerationRequest, parse_request
from engine_server.server.api.models import check_model
from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, GenerationFinished, Usage
from engine_server.server.generation.generate import Generation, generate
from engine_server.server.generation.prompts import tokenize_prompt
from engine_server.server.generation.render import respond
from engine_server.server.http.event_stream import OpenAIStream

if TYPE_CHECKING:
    from engine_server.requests.logprobs import TokenLogprobs
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import EngineHost, TraceHeaders

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest):
    """The body of a request."""

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(prompt_list)]
    logprobs: int | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    echo: Annotated[Any, only(False)] = None
    suffix: Annotated[Any, only("")] = None

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        max_tokens = defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
        if self.max_tokens is not None:
            max_tokens = self.max_tokens
        return self.to_sampling_params(defaults, max_tokens, self.logprobs)


class Logprobs(msgspec.Struct):
    """Log-probabilities of consecutive tokens."""

    # Where each token's text starts, in characters.
    text_offset: list[int] = []
    token_logprobs: list[float] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float]] = []


class Choice(msgspec.Struct):
    """One choice: a whole one, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


class Completion(AnswerHead, frozen=True):
    """A whole answer."""

    choices: list[Choice]
    usage: UsageBody


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    @openapi.body(CompletionRequest, Completion, streamed=True)
    async def post_completions(request: Request) -> Response:
        body = parse_request(CompletionRequest, await request.body())
        return await create_completion(host, body, host.trace_headers(request.headers))

    return router


async def create_completion(
    host: EngineHost, request: CompletionRequest, trace_headers: TraceHeaders
) -> Response:
    check_model(host, request.model)
    params = request.sampling_params(host.sampling_defaults)
    prompts = [await tokenize_prompt(host.engine, prompt) for prompt in request.prompt]
    head = AnswerHead(f"cmpl-{uuid.uuid4().hex}", "text_completion", int(time.time()), request.model)
    events = generate(host.engine, Generation(head.id, prompts, params, trace_headers))
    return await respond(events, CompletionRenderer(head, request.include_usage), bool(request.stream))


class CompletionRenderer(OpenAIStream):
    """Renders an answer, streamed or whole."""

    def __init__(self, head: AnswerHead, include_usage: bool) -> None:
        self._head = head
        self._encoder = ChunkEncoder(head, include_usage)
        # Where the next token's text starts, by choice; only kept where log-probabilities are asked for.
        self._offsets: dict[int, int] = {}

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event.usage)
        offset = self._offsets.get(event.choice, 0)
        choice = to_choice(event, offset)
        if choice.logprobs is not None:
            self._offsets[event.choice] = offset + sum(map(len, choice.logprobs.tokens))
        return self._encoder.choice(choice)

    def body(self, choices: list[ChoiceDelta], usage: Usage) -> bytes:
        head = self._head
        answer = Completion(
            head.id,
            head.object,
            head.created,
            head.model,
            choices=[to_choice(delta, offset=0) for delta in choices],
            usage=UsageBody.of(usage),
        )
        return msgspec.json.encode(answer)


def to_choice(delta: ChoiceDelta, offset: int) -> Choice:
    choice = Choice(delta.choice, delta.text)
    if delta.logprobs:
        choice.logprobs = to_logprobs(delta.logprobs, offset)
    if delta.finish is not None:
        choice.finish_reason, choice.stop_reason = delta.finish.reason, delta.finish.stop
    return choice


def to_logprobs(tokens: Sequence[TokenLogprobs], offset: int) -> Logprobs:
    """Return the log-probabilities of consecutive tokens, the first of which starts at `offset` in the text."""
    logprobs = Logprobs()
    for token in tokens:
        sampled = next(iter(token.values()))
        logprobs.text_offset.append(offset)
        logprobs.tokens.append(sampled.decoded_token or "")
        logprobs.token_logprobs.append(max(sampled.logprob, LOWEST_LOGPROB))
        top: dict[str, float] = {}
        for entry in token.values():
            top.setdefault(entry.decoded_token or "", max(entry.logprob, LOWEST_LOGPROB))
        logprobs.top_logprobs.append(top)
        offset += len(sampled.decoded_token or "")
    return logprobs
