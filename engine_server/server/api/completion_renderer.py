"""The answer of OpenAI's completions API, streamed or whole."""

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.server.api.openai_answer import (
    AnswerHead,
    AnswerOptions,
    ChunkEncoder,
    CompletionUsage,
    PromptLogprobs,
    StopReason,
    TokenIds,
    encode_prompt_logprobs,
    finite,
    in_turns,
    join_arrays,
    token_text,
)
from engine_server.server.generation.events import (
    ChoiceDelta,
    GenerationEvent,
    GenerationFinished,
    Prompt,
    TokenCounts,
)
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.generation.render import Renderer
from engine_server.server.http.event_stream import OpenAIStream

# The JSON arrays of `Logprobs`, in the order of its fields.
Columns = list[bytes]
ARRAY = msgspec.Meta(extra_json_schema={"type": "array"})


class Logprobs(msgspec.Struct):
    """Log-probabilities of consecutive tokens; a prompt's first token has none."""

    # Where each token's text starts, in characters.
    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


class EncodedLogprobs(msgspec.Struct):
    """The same, encoded before the rest of their answer."""

    text_offset: Annotated[msgspec.Raw, ARRAY]
    token_logprobs: Annotated[msgspec.Raw, ARRAY]
    tokens: Annotated[msgspec.Raw, ARRAY]
    top_logprobs: Annotated[msgspec.Raw, ARRAY]


class ChoiceFields(msgspec.Struct):
    """The fields that whole choices and chunks share."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET
    # Null in whole choices, and left out of chunks, unless the request asks for them.
    token_ids: TokenIds | None = msgspec.UNSET
    prompt_token_ids: TokenIds | None = msgspec.UNSET


class ChunkChoice(ChoiceFields):
    """The part of a choice that a chunk adds to it. Those of an echoed prompt are encoded."""

    logprobs: Logprobs | EncodedLogprobs | None = None


class Choice(ChoiceFields):
    """A whole choice."""

    logprobs: EncodedLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(AnswerHead, frozen=True):
    """A whole answer."""

    choices: list[Choice]
    usage: CompletionUsage


class CompletionRenderer(OpenAIStream, Renderer):
    """Renders an answer, streamed or whole.

    echo: each choice's text begins with its prompt. logprobs: the request asks for them.
    """

    def __init__(
        self,
        identity: AnswerIdentity,
        options: AnswerOptions,
        *,
        echo: bool,
        logprobs: bool,
        token_text: Callable[[int], str],
    ) -> None:
        head = AnswerHead(
            identity.id, "text_completion", identity.created, identity.model, identity.fingerprint
        )
        self._head = head
        self._options = options
        self._token_text = token_text
        self._echo = echo
        self._logprobs = logprobs
        self._encoder = ChunkEncoder(head, options)
        # Where the next token's text starts, by choice; only kept where log-probabilities are asked for.
        self._offsets: dict[int, int] = {}
        # The encoded log-probabilities of the prompts of choices whose first chunk follows.
        self._echoed: dict[int, list[Columns]] = {}

    async def prepare(self, delta: ChoiceDelta) -> None:
        assert delta.prompt is not None
        if self._logprobs and (tokens := self._prompt_tokens(delta.prompt)):
            columns, end = await encode_columns(tokens, self._options.tokens_as_ids)
            self._echoed[delta.choice], self._offsets[delta.choice] = columns, end

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event.counts)
        choice = ChunkChoice(event.choice, event.text)
        self._fill(choice, event)
        if self._logprobs:
            choice.logprobs = self._chunk_logprobs(event)
        return self._encoder.choice(choice, event.counts)

    async def body(self, choices: list[ChoiceDelta], counts: TokenCounts) -> bytes:
        head = self._head
        answer = Completion(
            head.id,
            head.object,
            head.created,
            head.model,
            head.system_fingerprint,
            choices=[await self._whole(delta) for delta in choices],
            usage=CompletionUsage.of(counts, self._options),
        )
        return msgspec.json.encode(answer)

    async def _whole(self, delta: ChoiceDelta) -> Choice:
        choice = Choice(delta.choice, delta.text, token_ids=None, prompt_token_ids=None)
        self._fill(choice, delta)
        prompt = delta.prompt
        assert prompt is not None, "an answer that is not streamed has one event for each choice"
        if self._logprobs and (tokens := self._prompt_tokens(prompt) + self._tokens(delta)):
            columns, _ = await encode_columns(tokens, self._options.tokens_as_ids)
            choice.logprobs = join_columns(columns)
        choice.prompt_logprobs = await encode_prompt_logprobs(prompt.logprobs)
        return choice

    def _chunk_logprobs(self, delta: ChoiceDelta) -> Logprobs | EncodedLogprobs | None:
        """Return the log-probabilities of a chunk's tokens, those of an echoed prompt first."""
        logprobs = None
        if tokens := self._tokens(delta):
            offset = self._offsets.get(delta.choice, 0)
            logprobs, self._offsets[delta.choice] = to_logprobs(tokens, offset, self._options.tokens_as_ids)
        if (columns := self._echoed.pop(delta.choice, None)) is None:
            return logprobs
        return join_columns(columns if logprobs is None else [*columns, encoded(logprobs)])

    def _fill(self, choice: ChoiceFields, delta: ChoiceDelta) -> None:
        """Set the fields that whole choices and chunks share."""
        if self._echo and delta.prompt is not None:
            choice.text = (delta.prompt.text or "") + choice.text
        if delta.finish is not None:
            choice.finish_reason, choice.stop_reason = delta.finish.reason, delta.finish.stop
        if self._options.token_ids:
            choice.token_ids = delta.token_ids
            if delta.prompt is not None:
                choice.prompt_token_ids = delta.prompt.token_ids

    def _prompt_tokens(self, prompt: Prompt) -> list[tuple[int, TokenLogprobs]]:
        """Return each token of a prompt that is echoed, and its log-probabilities."""
        if not self._echo or not prompt.logprobs:
            return []
        first, *others = prompt.token_ids
        # The first token has no log-probability.
        start = (first, {first: Logprob(0.0, None, self._token_text(first))})
        return [start, *zip(others, filter(None, prompt.logprobs), strict=True)]

    def _tokens(self, delta: ChoiceDelta) -> list[tuple[int, TokenLogprobs]]:
        """Return each new token of the text, and its log-probabilities."""
        tokens = []
        if delta.logprobs is None:  # tokens of another engine, which reported them
            for token_id in delta.token_ids:
                tokens.append((token_id, {token_id: Logprob(0.0, None, self._token_text(token_id))}))
        for entries in delta.logprobs or ():
            tokens.append((next(iter(entries)), entries))
        return tokens


async def encode_columns(
    tokens: Sequence[tuple[int, TokenLogprobs]], as_ids: bool
) -> tuple[list[Columns], int]:
    """Return the JSON of tokens' log-probabilities in parts, one for each turn of the event loop that encoded them.

    The number is where the text after them starts.
    """
    offset, parts = 0, []
    async for part in in_turns(tokens, len(tokens[-1][1])):
        found, offset = to_logprobs(part, offset, as_ids)
        parts.append(encoded(found))
    return parts, offset


def encoded(logprobs: Logprobs) -> Columns:
    return [msgspec.json.encode(column) for column in msgspec.structs.astuple(logprobs)]


def join_columns(parts: Sequence[Columns]) -> EncodedLogprobs:
    return EncodedLogprobs(*map(join_arrays, zip(*parts, strict=True)))


def to_logprobs(
    tokens: Sequence[tuple[int, TokenLogprobs]], offset: int, as_ids: bool
) -> tuple[Logprobs, int]:
    """Return the log-probabilities of consecutive tokens, and where the text after them starts.

    tokens: each token's id, and its log-probabilities. offset: where the first one's text starts. as_ids: name tokens
    by their ids.
    """
    logprobs = Logprobs()
    for token_id, entries in tokens:
        own = entries[token_id]
        logprobs.text_offset.append(offset)
        logprobs.tokens.append(token_text(token_id, own, as_ids))
        offset += len(own.decoded_token or "")
        if own.rank is None:
            logprobs.token_logprobs.append(None)
            logprobs.top_logprobs.append(None)
            continue
        logprobs.token_logprobs.append(finite(own))
        top: dict[str, float] = {}
        for other, entry in entries.items():
            top.setdefault(token_text(other, entry, as_ids), finite(entry))
        logprobs.top_logprobs.append(top)
    return logprobs, offset
