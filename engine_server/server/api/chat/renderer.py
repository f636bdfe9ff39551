"""The answer of OpenAI's chat API, streamed or whole."""

from typing import NamedTuple

import msgspec

from engine_server.engine.output.token_texts import TokenTexts
from engine_server.server.api.chat.logprobs import Logprobs, to_logprobs
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
    Part,
    Prompt,
    Reasoning,
    Text,
    TextKind,
    TokenCounts,
    ToolCall,
)
from engine_server.server.generation.plan import AnswerIdentity
from engine_server.server.generation.render import Renderer, TextWriter
from engine_server.server.http.event_stream import OpenAIStream


class Opening(NamedTuple):
    """The beginning of a choice's message."""

    role: str
    # The text of the message that is continued, if it is part of the answer.
    echo: str


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """A call's function, or a fragment of it."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct, kw_only=True):
    """A tool call of a whole choice."""

    id: str
    type: str = "function"
    function: CalledFunction


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The message of a whole choice. vLLM's name of the reasoning is `reasoning`, and earlier `reasoning_content`."""

    role: str
    # None for a message of reasoning or calls alone.
    content: str | None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct):
    """One choice of a whole answer."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET
    # Null unless the request asks for them.
    token_ids: list[int] | None = None


class CallDelta(msgspec.Struct, omit_defaults=True):
    """A fragment of a tool call; a call's first one has its id, type and name."""

    # Never the default, so that it is always written.
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class Delta(msgspec.Struct, omit_defaults=True):
    """The fields that a chunk adds to a choice's message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(msgspec.Struct):
    """The part of a chunk that belongs to a choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = msgspec.UNSET
    token_ids: TokenIds = msgspec.UNSET


class PromptFields(msgspec.Struct, omit_defaults=True):
    """The fields of an answer, and of a stream's first chunk, that report the prompt."""

    prompt_token_ids: TokenIds = msgspec.UNSET
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(AnswerHead, frozen=True):
    """A whole answer."""

    choices: list[Choice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | msgspec.UnsetType = msgspec.UNSET


class ChatRenderer(OpenAIStream, Renderer):
    """Renders an answer; a streamed one has the role, then the text, then the finish reason of each choice.

    openings: one for each prompt. top_logprobs: alternatives at each place of the text. prompt_text: report the text
    that the chat template makes of the messages. names_tool: the request names the tool that is called; its call
    doesn't change the finish reason, as in OpenAI's API and vLLM.
    """

    def __init__(
        self,
        identity: AnswerIdentity,
        options: AnswerOptions,
        openings: list[Opening],
        *,
        choices_per_prompt: int,
        top_logprobs: int,
        prompt_text: bool,
        names_tool: bool,
        texts: TokenTexts,
    ) -> None:
        self._head = AnswerHead(
            identity.id, "chat.completion", identity.created, identity.model, identity.fingerprint
        )
        chunk_head = msgspec.structs.replace(self._head, object="chat.completion.chunk")
        self._encoder = ChunkEncoder(chunk_head, options)
        self._options = options
        self._openings = openings
        self._choices_per_prompt = choices_per_prompt
        self._top_logprobs = top_logprobs
        self._prompt_text = prompt_text
        self._names_tool = names_tool
        self._texts = texts
        self._opened: set[int] = set()
        # The choices with a tool call.
        self._called: set[int] = set()

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            return self._encoder.usage(event.counts)
        chunks = b"" if event.choice in self._opened else self._open(event)
        if event.parts or event.logprobs or (self._options.token_ids and event.token_ids):
            delta = to_delta(event.parts)
            if delta.tool_calls:
                self._called.add(event.choice)
            choice = ChunkChoice(event.choice, delta, self._logprobs(event))
            if self._options.token_ids:
                choice.token_ids = event.token_ids
            chunks += self._encoder.choice(choice, event.counts)
        if event.finish is not None:
            finish = event.finish
            reason = self._finish_reason(event)
            choice = ChunkChoice(event.choice, Delta(), None, reason, finish.stop)
            chunks += self._encoder.choice(choice, event.counts)
        return chunks

    def text_writer(self, choice: int, kind: TextKind) -> TextWriter | None:
        if self._options.token_ids:
            return None
        return self._encoder.text_writer(ChunkChoice(choice, to_delta([kind(PLACE)])))

    async def body(self, choices: list[ChoiceDelta], counts: TokenCounts) -> bytes:
        head, prompt = self._head, choices[0].prompt
        assert prompt is not None, "an answer that is not streamed has one event for each choice"
        fields = self._prompt_fields(prompt)
        answer = ChatCompletion(
            head.id,
            head.object,
            head.created,
            head.model,
            head.system_fingerprint,
            choices=[self._whole(delta) for delta in choices],
            usage=CompletionUsage.of(counts, self._options),
            prompt_logprobs=await encode_prompt_logprobs(prompt.logprobs),
            prompt_token_ids=prompt.token_ids if self._reports_prompt_tokens else None,
            prompt_text=fields.prompt_text,
        )
        return msgspec.json.encode(answer)

    def _open(self, event: ChoiceDelta) -> bytes:
        """Return the first chunks of a choice: its role, and the text that it repeats."""
        self._opened.add(event.choice)
        opening = self._opening(event.choice)
        first = ChunkChoice(event.choice, Delta(role=opening.role, content=""))
        fields = self._prompt_fields(event.prompt) if event.prompt is not None else None
        chunks = self._encoder.choice(first, event.counts, fields if fields != PromptFields() else None)
        if opening.echo:
            chunks += self._encoder.choice(
                ChunkChoice(event.choice, Delta(content=opening.echo)), event.counts
            )
        return chunks

    def _whole(self, delta: ChoiceDelta) -> Choice:
        assert delta.finish is not None, "an answer that is not streamed has one event for each choice"
        opening = self._opening(delta.choice)
        message = to_message(delta, opening)
        if message.tool_calls:
            self._called.add(delta.choice)
        reason = self._finish_reason(delta)
        choice = Choice(delta.choice, message, self._logprobs(delta), reason, delta.finish.stop)
        if self._options.token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def _finish_reason(self, event: ChoiceDelta) -> str:
        """Return the reason of a choice's end, after its last parts."""
        assert event.finish is not None
        if event.choice in self._called and event.finish.reason == "stop" and not self._names_tool:
            return "tool_calls"
        return event.finish.reason

    def _opening(self, choice: int) -> Opening:
        return self._openings[choice // self._choices_per_prompt]

    def _logprobs(self, delta: ChoiceDelta) -> Logprobs | None:
        return to_logprobs(delta.logprobs, self._top_logprobs, self._texts, self._options.tokens_as_ids)

    @property
    def _reports_prompt_tokens(self) -> bool:
        return self._options.token_ids and len(self._openings) == 1

    def _prompt_fields(self, prompt: Prompt) -> PromptFields:
        fields = PromptFields()
        if self._reports_prompt_tokens:
            fields.prompt_token_ids = prompt.token_ids
        if self._prompt_text and prompt.text is not None:
            fields.prompt_text = prompt.text
        return fields


def to_delta(parts: list[Part]) -> Delta:
    """Return an event's parts."""
    text, reasoning = "", ""
    calls: list[CallDelta] = []
    for part in parts:
        match part:
            case Text(fragment):
                text += fragment
            case Reasoning(fragment):
                reasoning += fragment
            case ToolCall(index, call_id, name, arguments):
                kind = None if call_id is None else "function"
                calls.append(CallDelta(index, call_id, kind, CalledFunction(name, arguments)))
    content = None if not text and (reasoning or calls) else text
    return Delta(None, content, reasoning or None, reasoning or None, calls or None)


def to_message(delta: ChoiceDelta, opening: Opening) -> AnswerMessage:
    """Return the message of a whole choice."""
    message = AnswerMessage(role=opening.role, content=opening.echo + delta.text)
    if reasoning := reasoning_of(delta):
        message.reasoning = message.reasoning_content = reasoning
        message.content = message.content or None
    calls = [part for part in delta.parts if isinstance(part, ToolCall)]
    if calls:
        message.content = message.content or None
        message.tool_calls = [
            Call(id=call.id or "", function=CalledFunction(call.name, call.arguments)) for call in calls
        ]
    return message


def reasoning_of(event: ChoiceDelta) -> str:
    return "".join(part.text for part in event.parts if isinstance(part, Reasoning))
