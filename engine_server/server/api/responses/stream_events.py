"""Events of a streamed answer of the responses API. `sequence_number` counts them from 0."""

import msgspec

from engine_server.contract.wire.stream_ends import ResponseEvent
from engine_server.server.api.chat.logprobs import TokenLogprob
from engine_server.server.api.responses.body import Content, OutputItem


class ItemEvent(msgspec.Struct):
    """The beginning or the end of an item."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, kw_only=True):
    """The beginning or the end of an item's content."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    part: Content


class TextDelta(msgspec.Struct, kw_only=True):
    """New text of a message."""

    type: str = "response.output_text.delta"
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(msgspec.Struct, kw_only=True):
    """The whole text of a message."""

    type: str = "response.output_text.done"
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(msgspec.Struct, kw_only=True):
    """New text of a reasoning."""

    type: str = "response.reasoning_text.delta"
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningDone(msgspec.Struct, kw_only=True):
    """The whole text of a reasoning."""

    type: str = "response.reasoning_text.done"
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class ArgumentsDelta(msgspec.Struct, kw_only=True):
    """New text of a call's arguments."""

    type: str = "response.function_call_arguments.delta"
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(msgspec.Struct, kw_only=True):
    """The whole arguments of a call."""

    type: str = "response.function_call_arguments.done"
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


class InputDelta(msgspec.Struct, kw_only=True):
    """New text for a custom tool."""

    type: str = "response.custom_tool_call_input.delta"
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class InputDone(msgspec.Struct, kw_only=True):
    """The whole text for a custom tool."""

    type: str = "response.custom_tool_call_input.done"
    sequence_number: int
    item_id: str
    output_index: int
    input: str


StreamEvent = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)
