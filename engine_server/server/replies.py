"""The answers of OpenAI's API. Plain structs: one is encoded for every token that is streamed."""

from typing import Literal

import msgspec
from starlette.responses import Response

from engine_server.requests.logprobs import TokenLogprobs

StopReason = int | str | None | msgspec.UnsetType  # vLLM's; told once, with the finish_reason
UNLIKELY = -9999.0  # JSON has no infinity; OpenAI's API uses this number


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int] = []
    token_logprobs: list[float] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float]] = []


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatDeltaChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET


ObjectName = Literal["text_completion", "chat.completion", "chat.completion.chunk"]


class Answer(msgspec.Struct):
    """What a whole answer and every chunk of a streamed one begin with."""

    id: str
    object: ObjectName
    created: int
    model: str


class WholeAnswer(Answer):
    choices: list[CompletionChoice] | list[ChatChoice]
    usage: Usage


class Chunks:
    """Encodes one answer's chunks as events; all but the choice is encoded once."""

    def __init__(self, answer: Answer, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._head = b"data: " + msgspec.json.encode(answer)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode

    def choice(self, choice: CompletionChoice | ChatDeltaChoice) -> bytes:
        return self._head + self._encode(choice) + self._tail

    def usage(self, usage: Usage) -> bytes:
        """The last event before the end; empty where nobody asked for it."""
        if not self._include_usage:
            return b""
        return self._head + b'],"usage":' + self._encode(usage) + b"}\n\n"


def completion_logprobs(tokens: list[TokenLogprobs], offset: int) -> CompletionLogprobs:
    """The logprobs of consecutive tokens, the first of which starts at `offset` in the text."""
    reply = CompletionLogprobs()
    for token in tokens:
        sampled = next(iter(token.values()))
        reply.text_offset.append(offset)
        reply.tokens.append(sampled.decoded_token)
        reply.token_logprobs.append(max(sampled.logprob, UNLIKELY))
        top: dict[str, float] = {}
        for entry in token.values():
            top.setdefault(entry.decoded_token, max(entry.logprob, UNLIKELY))
        reply.top_logprobs.append(top)
        offset += len(sampled.decoded_token)
    return reply


def chat_logprobs(tokens: list[TokenLogprobs], top: int) -> ChatLogprobs:
    content = []
    for token in tokens:
        sampled = next(iter(token.values()))
        likeliest = sorted((entry for entry in token.values() if entry.rank <= top), key=lambda one: one.rank)
        content.append(
            TokenLogprob(
                sampled.decoded_token,
                max(sampled.logprob, UNLIKELY),
                _bytes(sampled.decoded_token),
                [
                    TopLogprob(entry.decoded_token, max(entry.logprob, UNLIKELY), _bytes(entry.decoded_token))
                    for entry in likeliest
                ],
            )
        )
    return ChatLogprobs(content)


def _bytes(token: str) -> list[int] | None:
    # A token that is a part of a character has no text, and so no bytes that could be told from it.
    return None if "\ufffd" in token else list(token.encode())


def json_response(reply: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
