"""The answer of the responses API: its items, and the body that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine_server.contract.wire.stream_ends import FailureBody
from engine_server.server.api.chat.logprobs import TokenLogprob
from engine_server.server.api.responses.tools import ToolTarget, custom_input
from engine_server.server.generation.events import Part, Reasoning, Text, TokenCounts, ToolCall

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Text of a reasoning."""

    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """The reasoning before the answer. There are no summaries: the text itself is shown."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[Any] = []


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A tool call."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    # Of a tool in one.
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes one text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem
Content = OutputText | ReasoningText


class InputTokensDetails(msgspec.Struct):
    """Parts of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Parts of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Numbers of tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, counts: TokenCounts) -> ResponseUsage:
        return cls(
            counts.prompt_tokens,
            InputTokensDetails(counts.cached_tokens or 0),
            counts.completion_tokens,
            OutputTokensDetails(counts.reasoning_tokens),
            counts.prompt_tokens + counts.completion_tokens,
        )


class IncompleteDetails(msgspec.Struct):
    """The reason why an answer is incomplete."""

    reason: str = "max_output_tokens"


class RequestEcho(msgspec.Struct, kw_only=True):
    """The request's fields that its answer repeats."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    # These can't have other values here.
    background: bool = False
    previous_response_id: None = None
    service_tier: str = "default"
    store: bool = False


class RawMessage(msgspec.Struct, tag_field="type", tag="raw_message_tokens"):
    """The prompt, or the output, as the model sees it, with vLLM's names."""

    message: str
    tokens: list[int]


class ResponseBody(msgspec.Struct, kw_only=True):
    """An answer, whole or as far as it is known."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    error: FailureBody | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    input_messages: list[RawMessage] | msgspec.UnsetType = msgspec.UNSET
    output_messages: list[RawMessage] | msgspec.UnsetType = msgspec.UNSET


def to_item(
    part: Part,
    response_id: str,
    index: int,
    status: ItemStatus,
    logprobs: list[TokenLogprob],
    targets: Mapping[str, ToolTarget],
) -> OutputItem:
    """Return the item of a whole part. Its id derives from the response's, so that a continued stream has the same.

    targets: the tools by the names that a model may call them.
    """
    suffix = f"{response_id.removeprefix('resp_')}_{index}"
    match part:
        case Text():
            return MessageItem(f"msg_{suffix}", status, [OutputText(part.text, [], logprobs)])
        case Reasoning():
            return ReasoningItem(f"rs_{suffix}", status, [ReasoningText(part.text)])
        case ToolCall():
            called = part.name or ""
            target = targets.get(called, ToolTarget(called, None, custom=False))
            namespace = target.namespace or msgspec.UNSET
            call_id, name = part.id or "", target.name
            if target.custom:
                text = custom_input(part.arguments)
                return CustomCallItem(f"ctc_{suffix}", status, call_id, name, text, namespace)
            return FunctionCallItem(f"fc_{suffix}", status, call_id, name, part.arguments, namespace)
