"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from starlette.responses import Response

from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.answers import LOWEST_LOGPROB, AnswerHead, ChunkEncoder, StopReason, Usage
from engine_server.server.api.fields import message_text, only
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.api.models import check_model
from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, GenerationFinished
from engine_server.server.generation.generate import Generation, generate
from engine_server.server.generation.prompts import ChatTurns, tokenize_chat
from engine_server.server.generation.render import body_response, stream_response
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.logprobs import Logprob, TokenLogprobs
    from engine_server.requests.sampling_params import SamplingParams
    from engine_server.server.engine_host import EngineHost, TraceHeaders


# The fields from which the engine's parameters are made, where their names differ.
ENGINE_PARAMETERS = {"prompt": "messages", "logprobs": "top_logprobs"}


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(message_text)]
    name: str | None = None

    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None

    def template_message(self) -> dict[str, str]:
        """Return the message as chat templates know it; they know "developer" by its older name."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        return message if self.name is None else message | {"name": self.name}


class ChatRequest(GenerationRequest):
    """The body of a request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None
    documents: Annotated[Any, only([])] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true"
            raise ApiError(400, message, param="continue_final_message")

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if max_tokens is None:
            max_tokens = defaults.get("max_tokens")
        return self.to_sampling_params(
            defaults, max_tokens, (self.top_logprobs or 0) if self.logprobs else None
        )

    def turns(self) -> ChatTurns:
        continue_last = bool(self.continue_final_message)
        open_answer = not continue_last if self.add_generation_prompt is None else self.add_generation_prompt
        messages = [message.template_message() for message in self.messages]
        return ChatTurns(messages, open_answer, continue_last)


class TopLogprob(msgspec.Struct):
    """A likely token at one place of the text."""

    token: str
    logprob: float
    # The token's UTF-8 bytes; None for a part of a character.
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the text, with the likeliest at its place."""

    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The message of a whole choice."""

    role: Literal["assistant"] = "assistant"
    content: str


class Choice(msgspec.Struct):
    """One choice of a whole answer."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to a choice's message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """The part of a chunk that belongs to a choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


class ChatCompletion(AnswerHead, frozen=True):
    """A whole answer."""

    choices: list[Choice]
    usage: Usage


async def create_chat_completion(
    host: EngineHost, request: ChatRequest, trace_headers: TraceHeaders
) -> Response:
    check_model(host, request.model)
    params = request.sampling_params(host.sampling_defaults)
    prompt = await tokenize_chat(host.engine, request.turns())
    request_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
    generation = Generation(request_id, [prompt], params, trace_headers, ENGINE_PARAMETERS)
    events = generate(host.engine, generation)
    top = request.top_logprobs or 0
    if request.stream:
        head = AnswerHead(request_id, "chat.completion.chunk", created, request.model)
        return stream_response(events, ChatStream(ChunkEncoder(head, request.include_usage), top))
    head = AnswerHead(request_id, "chat.completion", created, request.model)
    return await body_response(events, partial(chat_body, head, top))


class ChatStream:
    """Renders a streamed answer: the role, then the text, then the finish reason of each choice."""

    def __init__(self, encoder: ChunkEncoder, top_logprobs: int) -> None:
        self._encoder = encoder
        self._top_logprobs = top_logprobs
        self._opened: set[int] = set()

    def render(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event)
        chunks = b""
        if event.choice not in self._opened:
            self._opened.add(event.choice)
            chunks += self._encoder.choice(ChunkChoice(event.choice, Delta(role="assistant", content="")))
        if event.text or event.logprobs:
            logprobs = to_logprobs(event.logprobs, self._top_logprobs)
            chunks += self._encoder.choice(ChunkChoice(event.choice, Delta(content=event.text), logprobs))
        if event.finish is not None:
            finish = event.finish
            chunks += self._encoder.choice(
                ChunkChoice(event.choice, Delta(), None, finish.reason, finish.stop)
            )
        return chunks


def chat_body(
    head: AnswerHead, top_logprobs: int, choices: list[ChoiceDelta], finished: GenerationFinished
) -> bytes:
    """Render an answer that is not streamed."""
    answer = ChatCompletion(
        head.id,
        head.object,
        head.created,
        head.model,
        choices=[to_choice(delta, top_logprobs) for delta in choices],
        usage=Usage.of(finished),
    )
    return msgspec.json.encode(answer)


def to_choice(delta: ChoiceDelta, top: int) -> Choice:
    assert delta.finish is not None, "an answer that is not streamed has one event for each choice"
    message = AnswerMessage(content=delta.text)
    logprobs = to_logprobs(delta.logprobs, top)
    return Choice(delta.choice, message, logprobs, delta.finish.reason, delta.finish.stop)


def to_logprobs(tokens: Sequence[TokenLogprobs] | None, top: int) -> Logprobs | None:
    """Return the log-probabilities of consecutive tokens, each with the `top` likeliest at its place."""
    if not tokens:
        return None
    content = []
    for token in tokens:
        sampled = next(iter(token.values()))
        entries = [entry for entry in token.values() if (entry.rank or 0) <= top]
        likeliest = sorted(entries, key=lambda entry: entry.rank or 0)
        alternatives = [TopLogprob(*token_fields(entry)) for entry in likeliest]
        content.append(TokenLogprob(*token_fields(sampled), alternatives))
    return Logprobs(content)


def token_fields(entry: Logprob) -> tuple[str, float, list[int] | None]:
    token = entry.decoded_token or ""
    # A token that is a part of a character has no text, and its bytes are unknown.
    token_bytes = list(token.encode()) if token else None
    return token, max(entry.logprob, LOWEST_LOGPROB), token_bytes
