"""Edits of a conversation before its prompt: what an agent's client asks to clear of old turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field

from engine_server.contract.base.bounds import CONTEXT_EDITS, TOOLS
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.fields import Items
from engine_server.server.api.messages.blocks import (
    Block,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    only_types,
)
from engine_server.server.api.messages.turns import Message

CLEAR_TOOL_USES = "clear_tool_uses_20250919"
CLEAR_THINKING = "clear_thinking_20251015"
# What takes the place of a result.
CLEARED = TextBlock(type="text", text="[cleared]")
# Anthropic's defaults.
TRIGGER_TOKENS = 100_000
KEPT_TOOL_USES = 3
KEPT_THINKING_TURNS = 1

Amount = Annotated[int, Field(ge=0, le=MAX_INT32)]
ToolNames = Annotated[Items[str], Field(max_length=TOOLS.limit)]


class EditedMessages(NamedTuple):
    """A conversation after an edit."""

    messages: list[Message]
    # The number of tool uses, or of turns with reasoning, that the edit clears.
    cleared: int


class ToolUsesCleared(msgspec.Struct, tag_field="type", tag=CLEAR_TOOL_USES):
    """The report of an edit that was applied."""

    cleared_tool_uses: int
    cleared_input_tokens: int


class ThinkingCleared(msgspec.Struct, tag_field="type", tag=CLEAR_THINKING):
    """The report of an edit that was applied."""

    cleared_thinking_turns: int
    cleared_input_tokens: int


class InputTokens(BaseModel):
    """A number of the prompt's tokens."""

    model_config = ConfigDict(strict=True)

    type: Literal["input_tokens"]
    value: Amount


class ToolUses(BaseModel):
    """A number of tool calls with their results."""

    model_config = ConfigDict(strict=True)

    type: Literal["tool_uses"]
    value: Amount


class ThinkingTurns(BaseModel):
    """A number of turns of the assistant with reasoning."""

    model_config = ConfigDict(strict=True)

    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1, le=MAX_INT32)]


class AllThinkingTurns(BaseModel):
    """All of them."""

    model_config = ConfigDict(strict=True)

    type: Literal["all"]


class ClearToolUses(BaseModel):
    """Replace the oldest tool results by a note once the conversation is long."""

    model_config = ConfigDict(strict=True)

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Discriminator("type")] | None = None
    # The newest stay.
    keep: ToolUses | None = None
    # An edit that clears less isn't applied.
    clear_at_least: InputTokens | None = None
    # The results of these tools stay.
    exclude_tools: ToolNames | None = None
    # Clear the arguments of the calls too: of all whose result is cleared, or of those of these tools.
    clear_tool_inputs: bool | ToolNames | None = None

    @property
    def least_cleared_tokens(self) -> int:
        return self.clear_at_least.value if self.clear_at_least else 0

    def is_triggered(self, messages: Sequence[Message], num_tokens: int) -> bool:
        """num_tokens: the prompt's tokens before the edit."""
        if isinstance(self.trigger, ToolUses):
            return len(results_of(messages)) > self.trigger.value
        return num_tokens > (TRIGGER_TOKENS if self.trigger is None else self.trigger.value)

    def apply(self, messages: Sequence[Message]) -> EditedMessages:
        names = {
            block.id: block.name
            for message in messages
            for block in message.content
            if isinstance(block, ToolUseBlock)
        }
        results = results_of(messages)
        kept = KEPT_TOOL_USES if self.keep is None else self.keep.value
        excluded = frozenset(self.exclude_tools or ())
        old = {
            result.tool_use_id
            for result in results[: max(0, len(results) - kept)]
            if names.get(result.tool_use_id) not in excluded
        }

        def edited(block: Block) -> Block:
            if isinstance(block, ToolResultBlock) and block.tool_use_id in old:
                return block.model_copy(update={"content": [CLEARED]})
            if isinstance(block, ToolUseBlock) and block.id in old and self._clears_input(block.name):
                return block.model_copy(update={"input": {}})
            return block

        return EditedMessages(
            [with_content(message, [edited(block) for block in message.content]) for message in messages],
            len(old),
        )

    def report(self, cleared: int, cleared_tokens: int) -> ToolUsesCleared:
        return ToolUsesCleared(cleared, cleared_tokens)

    def _clears_input(self, name: str) -> bool:
        names = self.clear_tool_inputs
        return name in names if isinstance(names, list) else bool(names)


class ClearThinking(BaseModel):
    """Leave the reasoning out of all turns of the assistant but the newest."""

    model_config = ConfigDict(strict=True)

    type: Literal["clear_thinking_20251015"]
    keep: ThinkingTurns | AllThinkingTurns | Literal["all"] | None = None

    least_cleared_tokens: ClassVar[int] = 0

    def is_triggered(self, messages: Sequence[Message], num_tokens: int) -> bool:
        return True

    def apply(self, messages: Sequence[Message]) -> EditedMessages:
        if not isinstance(self.keep, ThinkingTurns | None):
            return EditedMessages(list(messages), 0)
        kept = KEPT_THINKING_TURNS if self.keep is None else self.keep.value
        turns = turn_numbers(messages)
        thinking = sorted(
            {
                turn
                for turn, message in zip(turns, messages, strict=True)
                if any(map(is_thinking, message.content))
            }
        )
        old = set(thinking[: max(0, len(thinking) - kept)])
        edited = [
            with_content(message, [block for block in message.content if not is_thinking(block)])
            if turn in old
            else message
            for turn, message in zip(turns, messages, strict=True)
        ]
        return EditedMessages(edited, len(old))

    def report(self, cleared: int, cleared_tokens: int) -> ThinkingCleared:
        return ThinkingCleared(cleared, cleared_tokens)


Edit = Annotated[
    Annotated[ClearToolUses | ClearThinking, Discriminator("type")],
    only_types(CLEAR_TOOL_USES, CLEAR_THINKING, noun="an edit"),
]


class ContextManagement(BaseModel):
    """The edits of a conversation, in their order."""

    model_config = ConfigDict(strict=True)

    edits: Annotated[list[Edit], Field(max_length=CONTEXT_EDITS.limit)] | None = None


def results_of(messages: Sequence[Message]) -> list[ToolResultBlock]:
    return [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]


def turn_numbers(messages: Sequence[Message]) -> list[int]:
    """Return the number of each message's turn: a turn goes on until the user says something else than results."""
    turn, numbers = 0, []
    for message in messages:
        if message.role != "assistant" and not all(
            isinstance(block, ToolResultBlock) for block in message.content
        ):
            turn += 1
        numbers.append(turn)
    return numbers


def is_thinking(block: Block) -> bool:
    return isinstance(block, ThinkingBlock | RedactedThinkingBlock)


def with_content(message: Message, content: list[Block]) -> Message:
    return message.model_copy(update={"content": content})
