"""Input items of the responses API, and the turns of the conversation that they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    PlainValidator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from engine_server.engine.conversation.turns import (
    Call,
    Content,
    Omitted,
    Part,
    Result,
    Text,
    Thinking,
    Turn,
)
from engine_server.server.api import pictures
from engine_server.server.api.content import at, read_content
from engine_server.server.api.fields import UNSUPPORTED, Items, call_arguments, picture_readers
from engine_server.server.api.responses.tools import CUSTOM_PARAMETER, template_name

KNOWN_ITEMS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)
# The field of the text by the type of a part.
TEXT_FIELDS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def typed_item(value: object) -> object:
    """Return an item with its type, which clients may leave out."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type") or ("message" if "role" in value else "item_reference")
    if kind == "item_reference":
        raise PydanticCustomError(
            UNSUPPORTED, "is a reference to a stored item, and nothing is stored: send the whole item", {}
        )
    return value | {"type": kind}


def item_content(value: object, info: ValidationInfo) -> Content:
    return read_content(value, TEXT_FIELDS, picture_readers(info, pictures.RESPONSES))


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
    summary: Items[ReasoningPart] = []
    content: Items[ReasoningPart] | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or self.summary)


class OmittedItem(ReasoningItem):
    """An item of an earlier answer that no model here takes, such as the call of a tool that another server ran."""

    type: Literal["reasoning"] = "reasoning"
    # The client's name of its type.
    kind: str


def known_or_omitted(value: object, read: ValidatorFunctionWrapHandler) -> Any:
    """Read an item of a known type, or omit it."""
    kind = value.get("type") if isinstance(value, dict) else None
    return OmittedItem(kind=kind) if isinstance(kind, str) and kind not in KNOWN_ITEMS else read(value)


Item = Annotated[
    Annotated[
        MessageItem | FunctionCallItem | CustomCallItem | CallOutputItem | ReasoningItem,
        Discriminator("type"),
    ],
    WrapValidator(known_or_omitted),
    BeforeValidator(typed_item),
]


def text_as_item(value: object) -> object:
    """Return input that is a string as one message of the user."""
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Input = Annotated[Items[Item], BeforeValidator(text_as_item)]


def is_of_assistant(item: Item) -> bool:
    return not isinstance(item, CallOutputItem) and getattr(item, "role", "assistant") == "assistant"


def turns_of(instructions: str | None, items: Sequence[Item]) -> tuple[Turn, ...]:
    """Return the conversation's turns. Consecutive items of an answer are one turn."""
    turns = [Turn("system", (Text(instructions),), path="instructions")] if instructions else []
    for of_assistant, group in groupby(enumerate(items), key=lambda pair: is_of_assistant(pair[1])):
        numbered = [(f"input.{number}", item) for number, item in group]
        if of_assistant:
            parts = tuple(part for path, item in numbered for part in parts_of(item, path))
            turns.append(Turn("assistant", parts, path=numbered[0][0]))
            continue
        for path, item in numbered:
            role = item.role if isinstance(item, MessageItem) else "tool"
            turns.append(Turn(role, tuple(parts_of(item, path)), path=path))
    return tuple(turns)


def parts_of(item: Item, path: str) -> Sequence[Part]:
    """Return the parts of an item. path: that of the item."""
    match item:
        case OmittedItem():
            return [Omitted(item.kind, path)]
        case MessageItem():
            return at(f"{path}.content", item.content, item.role)
        case CallOutputItem():
            return [Result(item.call_id, at(f"{path}.output", item.output, "tool"))]
        case ReasoningItem():
            return [Thinking(item.text)] if item.text else []
        case FunctionCallItem() | CustomCallItem():
            return [Call(item.call_id, template_name(item.namespace, item.name), item.arguments)]
