"""Parts that the answers of OpenAI's completions and chat APIs share. Plain structs: a token costs one encoding."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from starlette.responses import Response

from engine_server.contract.wire.engine_report import Fingerprint, ReportedUsage
from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.server.generation.events import TokenCounts
from engine_server.server.generation.render import TextWriter, framed
from engine_server.server.http.built_answer import BuiltAnswer

T = TypeVar("T")
# Log-probabilities that are rendered in one turn of the event loop, in about 5 ms.
PER_TURN = 4096
# vLLM's field, which is encoded before the rest of its answer.
PromptLogprobs = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="For each token of the prompt, its log-probabilities by token id; null for the first one.",
        extra_json_schema={"type": ["array", "null"]},
    ),
]
# vLLM's field: the stop string or token id, present only beside the finish_reason.
StopReason = int | str | None | msgspec.UnsetType
# vLLM's field: present only if the request asks for it.
TokenIds = list[int] | msgspec.UnsetType
# JSON has no infinity; OpenAI's API writes this number in its place.
LOWEST_LOGPROB = -9999.0
# Stands for a text in a chunk of which the rest is wanted.
PLACE = "TEXT"
PLACE_JSON = msgspec.json.encode(PLACE)


class AnswerOptions(msgspec.Struct, frozen=True):
    """A request's choice of what its answer reports."""

    # End a stream with the usage.
    include_usage: bool = False
    # Report the usage so far in each chunk.
    continuous_usage: bool = False
    # Report cached prompt tokens in the usage.
    cached_tokens: bool = False
    # Report the prompt's and the answer's token ids.
    token_ids: bool = False
    # Name tokens by their ids in log-probabilities.
    tokens_as_ids: bool = False


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Parts of the prompt tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Parts of the completion tokens."""

    reasoning_tokens: int


class CompletionUsage(msgspec.Struct, frozen=True):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    # None unless the server was started to report it.
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, counts: TokenCounts, options: AnswerOptions) -> "CompletionUsage":
        return cls(
            counts.prompt_tokens,
            counts.completion_tokens,
            counts.prompt_tokens + counts.completion_tokens,
            PromptTokensDetails(counts.cached_tokens or 0) if options.cached_tokens else None,
            CompletionTokensDetails(counts.reasoning_tokens),
        )


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
    system_fingerprint: str


class ChunkEncoder:
    """Encodes one answer's chunks as server-sent events; all but the choice is encoded once."""

    def __init__(self, head: AnswerHead, options: AnswerOptions) -> None:
        self._options = options
        self._start = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode

    def choice(self, choice: msgspec.Struct, counts: TokenCounts, top: msgspec.Struct | None = None) -> bytes:
        """Return a chunk with one choice.

        counts: the numbers so far, which the chunk has if the request asks for it. top: further fields of the chunk.
        """
        end = self._end
        if self._options.continuous_usage:
            end = b'],"usage":' + self._encode(CompletionUsage.of(counts, self._options)) + b"}\n\n"
        if top is not None:
            end = end[:-3] + b"," + self._encode(top)[1:] + b"\n\n"
        return self._start + self._encode(choice) + end

    def text_writer(self, choice: msgspec.Struct) -> TextWriter | None:
        """Return the writer of a chunk by its choice's text, which is PLACE; None if the chunk has the usage too."""
        if self._options.continuous_usage:
            return None
        pieces = self._encode(choice).split(PLACE_JSON)
        return framed([self._start + pieces[0], *pieces[1:-1], pieces[-1] + self._end])

    def usage(self, counts: TokenCounts) -> bytes:
        """Return the last chunk, which carries the usage; b"" unless the client asked for it."""
        if not self._options.include_usage:
            return b""
        return (
            self._start + b'],"usage":' + self._encode(CompletionUsage.of(counts, self._options)) + b"}\n\n"
        )


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token at one place of the prompt, in vLLM's shape."""

    logprob: float
    rank: int | None
    decoded_token: str | None


async def encode_prompt_logprobs(positions: Sequence[TokenLogprobs | None] | None) -> PromptLogprobs | None:
    """Return the JSON of a prompt's log-probabilities, encoded in several turns of the event loop."""
    if positions is None:
        return None
    parts = [
        msgspec.json.encode(prompt_logprobs(part))
        async for part in in_turns(positions, len(positions[-1] or ()))
    ]
    return join_arrays(parts)


async def in_turns(items: Sequence[T], entries: int) -> AsyncIterator[Sequence[T]]:
    """Yield parts of `items`, which have `entries` log-probabilities each, in one turn of the event loop each."""
    size = max(1, PER_TURN // max(1, entries))
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


def join_arrays(parts: Sequence[bytes]) -> msgspec.Raw:
    """Return the JSON array with the items of several arrays, none of which is empty."""
    return msgspec.Raw(b"[" + b",".join([part[1:-1] for part in parts]) + b"]")


def prompt_logprobs(
    positions: Sequence[TokenLogprobs | None],
) -> list[dict[int, PromptLogprob] | None]:
    """Return log-probabilities of a prompt by token id in vLLM's shape; its first token has None."""
    return [
        {
            token_id: PromptLogprob(finite(one), one.rank, one.decoded_token)
            for token_id, one in position.items()
        }
        if position
        else None
        for position in positions
    ]


def finite(entry: Logprob) -> float:
    """Return an entry's log-probability, as JSON can represent it."""
    return max(entry.logprob, LOWEST_LOGPROB)


def token_text(token_id: int, entry: Logprob, as_id: bool) -> str:
    """Return a token as log-probabilities name it: its text, or its id as text."""
    return f"token_id:{token_id}" if as_id else entry.decoded_token or ""


def json_response(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def tokenizer_response(answer: msgspec.Struct) -> Response:
    """Return the response with an answer of the tokenizer, which costs a caller no tokens."""
    return BuiltAnswer(msgspec.json.encode(answer), {ReportedUsage.NAME: ReportedUsage(0, 0).value()})


def prompt_response(answer: msgspec.Struct, num_tokens: int, fingerprint: str) -> Response:
    """Return the response with an answer to prompts of so many tokens, which has no generated text.

    fingerprint: that of the model that answers.
    """
    headers = {ReportedUsage.NAME: ReportedUsage(num_tokens, 0).value(), Fingerprint.NAME: fingerprint}
    return BuiltAnswer(msgspec.json.encode(answer), headers)
