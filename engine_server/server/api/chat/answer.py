"""The answer of OpenAI's chat API, streamed or whole."""

from typing import Literal

import msgspec

from engine_server.server.api.answers import AnswerHead, ChunkEncoder, StopReason, UsageBody
from engine_server.server.api.chat.logprobs import Logprobs, to_logprobs
from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, GenerationFinished, Usage
from engine_server.server.http.event_stream import OpenAIStream


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
    usage: UsageBody


class ChatRenderer(OpenAIStream):
    """Renders an answer; a streamed one has the role, then the text, then the finish reason of each choice."""

    def __init__(
        self, request_id: str, created: int, model: str, top_logprobs: int, include_usage: bool
    ) -> None:
        chunk_head = AnswerHead(request_id, "chat.completion.chunk", created, model)
        self._encoder = ChunkEncoder(chunk_head, include_usage)
        self._id, self._created, self._model = request_id, created, model
        self._top_logprobs = top_logprobs
        self._opened: set[int] = set()

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event.usage)
        chunks = b""
        if event.choice not in self._opened:
            self._opened.add(event.choice)
            chunks += self._encoder.choice(ChunkChoice(event.choice, Delta(role="assistant", content="")))
        if event.parts or event.logprobs:
            logprobs = to_logprobs(event.logprobs, self._top_logprobs)
            chunks += self._encoder.choice(ChunkChoice(event.choice, Delta(content=event.text), logprobs))
        if event.finish is not None:
            finish = event.finish
            chunks += self._encoder.choice(
                ChunkChoice(event.choice, Delta(), None, finish.reason, finish.stop)
            )
        return chunks

    def body(self, choices: list[ChoiceDelta], usage: Usage) -> bytes:
        answer = ChatCompletion(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            choices=[to_choice(delta, self._top_logprobs) for delta in choices],
            usage=UsageBody.of(usage),
        )
        return msgspec.json.encode(answer)


def to_choice(delta: ChoiceDelta, top: int) -> Choice:
    assert delta.finish is not None, "an answer that is not streamed has one event for each choice"
    message = AnswerMessage(content=delta.text)
    logprobs = to_logprobs(delta.logprobs, top)
    return Choice(delta.choice, message, logprobs, delta.finish.reason, delta.finish.stop)
