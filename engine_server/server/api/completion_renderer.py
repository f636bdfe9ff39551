"""The answer of OpenAI's completions API, streamed or whole."""

import msgspec

from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.server.api.completion_logprobs import (
    Columns,
    EncodedLogprobs,
    Logprobs,
    TextPlace,
    encode_columns,
    encoded,
    join_columns,
    to_logprobs,
)
from engine_server.server.api.openai_answer import (
    PLACE,
    AnswerHead,
    AnswerOptions,
    ChunkEncoder,
    CompletionUsage,
    PromptLogprobs,
    StopReason,
    TokenIds,
    encode_prompt_logprobs,
)
from engine_server.server.generation.events import (
    ChoiceDelta,
    GenerationEvent,
    GenerationFinished,
    Prompt,
    Text,
    TextKind,
    TokenCounts,
)
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.generation.render import Renderer, TextWriter
from engine_server.server.http.event_stream import OpenAIStream


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

    echo: each choice's text begins with its prompt. logprobs: the request asks for them. skips_special: the text is
    without special tokens.
    """

    def __init__(
        self,
        identity: AnswerIdentity,
        options: AnswerOptions,
        *,
        echo: bool,
        logprobs: bool,
        skips_special: bool,
        texts: TokenTexts,
    ) -> None:
        head = AnswerHead(
            identity.id, "text_completion", identity.created, identity.model, identity.fingerprint
        )
        self._head = head
        self._options = options
        self._texts = texts
        self._skips_special = skips_special
        self._echo = echo
        self._logprobs = logprobs
        self._encoder = ChunkEncoder(head, options)
        # By choice; only kept where log-probabilities are asked for.
        self._places: dict[int, TextPlace] = {}
        # The encoded log-probabilities of the prompts of choices whose first chunk follows.
        self._echoed: dict[int, list[Columns]] = {}

    async def prepare(self, delta: ChoiceDelta) -> None:
        assert delta.prompt is not None
        if self._logprobs and (columns := await self._prompt_columns(delta.choice, delta.prompt)):
            self._echoed[delta.choice] = columns

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event.counts)
        choice = ChunkChoice(event.choice, event.text)
        self._fill(choice, event)
        if self._logprobs:
            choice.logprobs = self._chunk_logprobs(event)
        return self._encoder.choice(choice, event.counts)

    def text_writer(self, choice: int, kind: TextKind) -> TextWriter | None:
        if self._logprobs or self._options.token_ids or kind is not Text:
            return None
        return self._encoder.text_writer(ChunkChoice(choice, PLACE))

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
        if self._logprobs:
            columns = await self._prompt_columns(delta.choice, prompt)
            columns += await encode_columns(self._tokens(delta), self._place(delta.choice))
            choice.logprobs = join_columns(columns) if columns else None
        choice.prompt_logprobs = await encode_prompt_logprobs(prompt.logprobs)
        return choice

    def _chunk_logprobs(self, delta: ChoiceDelta) -> Logprobs | EncodedLogprobs | None:
        """Return the log-probabilities of a chunk's tokens, those of an echoed prompt first."""
        logprobs = None
        if tokens := self._tokens(delta):
            logprobs = to_logprobs(tokens, self._place(delta.choice))
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

    def _place(self, choice: int) -> TextPlace:
        """Return where the next token's text starts in a choice's text."""
        if choice not in self._places:
            self._places[choice] = TextPlace(
                self._texts, skips_special=self._skips_special, as_ids=self._options.tokens_as_ids
            )
        return self._places[choice]

    async def _prompt_columns(self, choice: int, prompt: Prompt) -> list[Columns]:
        """Return the encoded log-probabilities of a prompt that is echoed."""
        place = self._place(choice)
        place.prompt = prompt.text
        columns = await encode_columns(self._prompt_tokens(prompt), place)
        place.prompt = None
        return columns

    def _prompt_tokens(self, prompt: Prompt) -> list[tuple[int, TokenLogprobs]]:
        """Return each token of a prompt that is echoed, and its log-probabilities."""
        if not self._echo or not prompt.logprobs:
            return []
        first, *others = prompt.token_ids
        # The first token has no log-probability.
        start = (first, {first: Logprob(0.0, None, self._texts.text(first))})
        return [start, *zip(others, filter(None, prompt.logprobs), strict=True)]

    def _tokens(self, delta: ChoiceDelta) -> list[tuple[int, TokenLogprobs]]:
        """Return each new token of the text, and its log-probabilities."""
        tokens = []
        if delta.logprobs is None:  # tokens of another engine, which reported them
            for token_id in delta.token_ids:
                tokens.append((token_id, {token_id: Logprob(0.0, None, self._texts.text(token_id))}))
        for entries in delta.logprobs or ():
            tokens.append((next(iter(entries)), entries))
        return tokens
