"""Input items of the responses API, and the turns of a chat template that they become."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, PlainValidator
from pydantic_core import PydanticCustomError

from engine_server.server.api.chat.messages import with_known_roles
from engine_server.server.api.content import Content, MediaUse, media_of, read_content, text_of
from engine_server.server.api.fields import UNSUPPORTED, call_arguments
from engine_server.server.api.responses.tools import CUSTOM_PARAMETER, template_name

SUPPORTED_ITEMS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)
# The field of the text by the type of a part.
TEXT_FIELDS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def supported_item(value: object) -> object:
    """Return an item with its type, which clients may leave out. Refuse items of other types by name."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type") or ("message" if "role" in value else "item_reference")
    if kind == "item_reference":
        raise PydanticCustomError(
            UNSUPPORTED, "is a reference to a stored item, and nothing is stored: send the whole item", {}
        )
    if kind not in SUPPORTED_ITEMS:
        raise PydanticCustomError(
            UNSUPPORTED,
            "is an item of type {kind}, which is not supported; supported: {supported}",
            {"kind": str(kind)[:64], "supported": ", ".join(SUPPORTED_ITEMS)},
        )
    return value | {"type": kind}


def item_content(value: object) -> Content:
    return read_content(value, TEXT_FIELDS)


ItemContent = Annotated[Content, PlainValidator(item_content)]


class MessageItem(BaseModel):
    """A message, also one of an earlier answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    @property
    def is_open(self) -> bool:
        """True for the beginning of an answer, which is continued where it is the last item."""
        return self.role == "assistant" and self.status in ("in_progress", "incomplete")


class FunctionCallItem(BaseModel):
    """A tool call of an earlier answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Annotated[dict[str, Any] | str, PlainValidator(call_arguments)]


class CustomCallItem(BaseModel):
    """A call of a custom tool in an earlier answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str

    @property
    def arguments(self) -> dict[str, Any]:
        return {CUSTOM_PARAMETER: self.input}


class CallOutputItem(BaseModel):
    """The result of a tool call."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: ItemContent


class ReasoningPart(BaseModel):
    """A part of a reasoning's text."""

    model_config = ConfigDict(strict=True)

    text: str


class ReasoningItem(BaseModel):
    """The reasoning of an earlier answer. Encrypted content is of other servers, and nothing here can read it."""

    model_config = ConfigDict(strict=True)

    type: Literal["reasoning"]
    summary: list[ReasoningPart] = []
    content: list[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or self.summary)


Item = Annotated[
    Annotated[
        MessageItem | FunctionCallItem | CustomCallItem | CallOutputItem | ReasoningItem,
        Discriminator("type"),
    ],
    BeforeValidator(supported_item),
]


def text_as_item(value: object) -> object:
    """Return input that is a string as one message of the user."""
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Input = Annotated[list[Item], BeforeValidator(text_as_item)]


def is_of_assistant(item: Item) -> bool:
    return not isinstance(item, CallOutputItem) and getattr(item, "role", "assistant") == "assistant"


def media_in(items: list[Item]) -> list[MediaUse]:
    """Return the media of the conversation."""
    return media_of([content_of(item, f"input.{number}") for number, item in enumerate(items)])


def content_of(item: Item, path: str) -> tuple[str, str, Content]:
    """Return an item's content, with its path in the body and its role. path: that of the item."""
    match item:
        case MessageItem():
            return f"{path}.content", item.role, item.content
        case CallOutputItem():
            return f"{path}.output", "tool", item.output
        case _:
            return path, "assistant", ()


def template_messages(instructions: str | None, items: list[Item]) -> list[dict[str, Any]]:
    """Return the conversation's turns. Consecutive items of an answer are one turn."""
    turns: list[dict[str, Any]] = []
    if instructions:
        turns.append({"role": "system", "content": instructions})
    names = {
        item.call_id: template_name(item.namespace, item.name)
        for item in items
        if isinstance(item, FunctionCallItem | CustomCallItem)
    }
    for of_assistant, group in groupby(items, key=is_of_assistant):
        if of_assistant:
            turns.append(assistant_turn(list(group)))
            continue
        for item in group:
            if isinstance(item, CallOutputItem):
                turns.append(tool_turn(item, names))
            elif isinstance(item, MessageItem):
                turns.append({"role": item.role, "content": text_of(item.content)})
    return with_known_roles(turns)


def assistant_turn(items: list[Item]) -> dict[str, Any]:
    texts, reasoning, calls = [], [], []
    for item in items:
        match item:
            case MessageItem():
                texts.append(text_of(item.content))
            case ReasoningItem():
                reasoning.append(item.text)
            case FunctionCallItem() | CustomCallItem():
                name = template_name(item.namespace, item.name)
                function = {"name": name, "arguments": item.arguments}
                calls.append({"id": item.call_id, "type": "function", "function": function})
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if any(reasoning):
        turn["reasoning_content"] = "".join(reasoning)
    if calls:
        turn["tool_calls"] = calls
    return turn


def tool_turn(item: CallOutputItem, names: dict[str, str]) -> dict[str, Any]:
    turn = {"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)}
    if item.call_id in names:
        turn["name"] = names[item.call_id]
    return turn
