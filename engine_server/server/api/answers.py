"""Parts that the answers of OpenAI's completions and chat APIs share. Plain structs: a token costs one encoding."""

from typing import Literal

import msgspec
from starlette.responses import Response

from engine_server.server.generation.events import Usage

# vLLM's field: the stop string or token id, present only beside the finish_reason.
StopReason = int | str | None | msgspec.UnsetType
# JSON has no infinity; OpenAI's API writes this number in its place.
LOWEST_LOGPROB = -9999.0


class UsageBody(msgspec.Struct, frozen=True):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "UsageBody":
        total = usage.prompt_tokens + usage.completion_tokens
        return cls(usage.prompt_tokens, usage.completion_tokens, total)


class PromptUsage(msgspec.Struct, frozen=True):
    """Numbers of tokens of an answer without generated text."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int) -> "PromptUsage":
        return cls(prompt_tokens, prompt_tokens)


class AnswerHead(msgspec.Struct, frozen=True):
    """The fields that a whole answer and every chunk of a streamed one begin with."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str


class ChunkEncoder:
    """Encodes one answer's chunks as server-sent events; all but the choice is encoded once."""

    def __init__(self, head: AnswerHead, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._start = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode

    def choice(self, choice: msgspec.Struct) -> bytes:
        return self._start + self._encode(choice) + self._end

    def usage(self, usage: Usage) -> bytes:
        """Return the last chunk, which carries the usage; b"" unless the client asked for it."""
        if not self._include_usage:
            return b""
        return self._start + b'],"usage":' + self._encode(UsageBody.of(usage)) + b"}\n\n"


def json_response(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
