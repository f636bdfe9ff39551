"""The answer of Anthropic's messages API, streamed or whole."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine_server.contract.wire.stream_ends import anthropic_end, named_event
from engine_server.server.api.messages.context_edits import ThinkingCleared, ToolUsesCleared
from engine_server.server.generation.events import (
    ChoiceDelta,
    Finish,
    GenerationEvent,
    GenerationFinished,
    Part,
    Reasoning,
    Text,
    TextKind,
    TokenCounts,
    ToolCall,
)
from engine_server.server.generation.parts import join_parts
from engine_server.server.generation.render import Renderer, TextWriter, framed
from engine_server.server.http.errors import ApiError

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
EMPTY_INPUT = msgspec.Raw(b"{}")

# The beginnings of deltas.
TEXT_DELTA = b'"text_delta","text":'
THINKING_DELTA = b'"thinking_delta","thinking":'

encode = msgspec.json.Encoder().encode


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """The reasoning before the answer."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(msgspec.Struct):
    """Kinds of output tokens."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """Numbers of tokens. The prompt's tokens are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails

    @classmethod
    def of(cls, counts: TokenCounts, report_cached: bool) -> MessageUsage:
        cached = (counts.cached_tokens or 0) if report_cached else 0
        thinking = OutputTokensDetails(counts.reasoning_tokens)
        return cls(counts.prompt_tokens - cached, 0, cached, counts.completion_tokens, thinking)


class AppliedEdits(msgspec.Struct):
    """The edits of the conversation that were applied."""

    applied_edits: list[ToolUsesCleared | ThinkingCleared]


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A whole answer, or the beginning of a streamed one."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    # Of a request with edits, in a whole answer.
    context_management: AppliedEdits | msgspec.UnsetType = msgspec.UNSET


class Stop(msgspec.Struct):
    """The reason why the answer ended."""

    stop_reason: str
    # The stop sequence that ended it.
    stop_sequence: str | None = None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The first event of a stream."""

    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """The beginning of a block."""

    index: int
    content_block: Block


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The event after the last block."""

    delta: Stop
    usage: MessageUsage
    # Of a request with edits.
    context_management: AppliedEdits | msgspec.UnsetType = msgspec.UNSET


class MessagesRenderer(Renderer):
    """Renders an answer; a streamed one has a start, deltas and a stop for each block, in order."""

    end = b""
    num_events = 0

    def __init__(
        self,
        message_id: str,
        model: str,
        max_tokens: int,
        *,
        show_thinking: bool,
        report_cached: bool,
        applied_edits: list[ToolUsesCleared | ThinkingCleared] | None = None,
    ) -> None:
        """applied_edits: None for a request without edits of its conversation."""
        self._id, self._model = message_id, model
        self._max_tokens = max_tokens
        self._show_thinking = show_thinking
        self._report_cached = report_cached
        self._edits = msgspec.UNSET if applied_edits is None else AppliedEdits(applied_edits)
        self._started = False
        # Index and first part of the open block; None between blocks.
        self._index = -1
        self._open: Part | None = None
        self._calls = 0
        self._finish: Finish | None = None

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            assert self._finish is not None, "the choice ends before the generation"
            stop = to_stop(self._finish, event.counts, self._max_tokens, self._calls)
            usage = MessageUsage.of(event.counts, self._report_cached)
            return named_event("message_delta", MessageDelta(stop, usage, self._edits)) + MESSAGE_STOP
        events = b""
        if not self._started:
            self._started = True
            events += named_event("message_start", MessageStart(self._message([], event.counts))) + PING
        for part in event.parts:
            if not continues(self._open, part):
                events += self._close() + self._begin(part)
            events += self._delta(part)
        if event.finish is not None:
            self._finish = event.finish
            events += self._close()
        return events

    def text_writer(self, choice: int, kind: TextKind) -> TextWriter | None:
        if type(self._open) is not kind:
            return None
        if kind is Text:
            return framed(self._block_frame(TEXT_DELTA))
        return framed(self._block_frame(THINKING_DELTA)) if self._show_thinking else None

    async def body(self, choices: list[ChoiceDelta], counts: TokenCounts) -> bytes:
        (choice,) = choices
        assert choice.finish is not None, "an answer that is not streamed has one event"
        blocks = [self._block(part) for part in join_parts(choice.parts)]
        calls = sum(isinstance(block, ToolUseBlock) for block in blocks)
        stop = to_stop(choice.finish, counts, self._max_tokens, calls)
        message = self._message(blocks, counts)
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        message.context_management = self._edits
        return encode(message)

    def error(self, error: ApiError) -> bytes:
        return anthropic_end(error.anthropic_body(None))

    def _message(self, blocks: list[Block], counts: TokenCounts) -> Message:
        return Message(
            id=self._id, model=self._model, content=blocks, usage=MessageUsage.of(counts, self._report_cached)
        )

    def _block(self, part: Part) -> Block:
        """Return the block of a whole part."""
        match part:
            case Text():
                return TextBlock(part.text)
            case Reasoning():
                return ThinkingBlock(part.text if self._show_thinking else "", self._id)
            case ToolCall():
                arguments = msgspec.Raw(part.arguments.encode()) if part.arguments else EMPTY_INPUT
                return ToolUseBlock(part.id or "", part.name or "", arguments)

    def _begin(self, part: Part) -> bytes:
        """Open the block to which `part` belongs, and return its first event."""
        self._index += 1
        self._open = part
        match part:
            case Text():
                block: Block = TextBlock("")
            case Reasoning():
                block = ThinkingBlock("", "")
            case ToolCall():
                self._calls += 1
                block = ToolUseBlock(part.id or "", part.name or "", EMPTY_INPUT)
        return named_event("content_block_start", BlockStart(self._index, block))

    def _delta(self, part: Part) -> bytes:
        match part:
            case Text():
                return self._block_delta(TEXT_DELTA, part.text)
            case Reasoning():
                return self._block_delta(THINKING_DELTA, part.text if self._show_thinking else "")
            case ToolCall():
                return self._block_delta(b'"input_json_delta","partial_json":', part.arguments)

    def _block_delta(self, kind: bytes, text: str) -> bytes:
        """Return the event of one delta, which is encoded by hand because there is one for each token."""
        return encode(text).join(self._block_frame(kind)) if text else b""

    def _block_frame(self, kind: bytes) -> tuple[bytes, bytes]:
        """Return the bytes around the text of a delta of the open block."""
        start = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
        )
        return start % (self._index, kind), b"}}\n\n"

    def _close(self) -> bytes:
        """Close the open block, and return its last events."""
        if self._open is None:
            return b""
        signature = b""
        if isinstance(self._open, Reasoning):
            # It says nothing here, but clients expect one and send it back.
            signature = self._block_delta(b'"signature_delta","signature":', self._id)
        self._open = None
        return signature + (
            b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % self._index
        )


def continues(first: Part | None, part: Part) -> bool:
    """Return true if `part` belongs to the block that `first` opened."""
    if isinstance(first, ToolCall) and isinstance(part, ToolCall):
        return first.index == part.index
    return type(first) is type(part)


def to_stop(finish: Finish, counts: TokenCounts, max_tokens: int, calls: int) -> Stop:
    """Return the end of an answer with this number of tool calls."""
    if finish.reason == "timeout":
        return Stop("max_tokens")  # the closest of Anthropic's reasons
    if finish.reason == "length":
        limit = "max_tokens" if counts.completion_tokens >= max_tokens else "model_context_window_exceeded"
        return Stop(limit)
    if isinstance(finish.stop, str):
        return Stop("stop_sequence", finish.stop)
    return Stop("tool_use" if calls else "end_turn")
