"""The messages of a conversation, as clients send them."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from engine_server.engine.conversation.turns import (
    Call,
    Content,
    Part,
    Result,
    Thinking,
    Turn,
    joined,
)
from engine_server.server.api import pictures
from engine_server.server.api.content import at, read_content
from engine_server.server.api.fields import Items, call_arguments, only, picture_readers


def message_content(value: object, info: ValidationInfo) -> Content:
    return read_content(value, {"text": "text", "refusal": "refusal"}, picture_readers(info, pictures.CHAT))


class FunctionCall(BaseModel):
    """The function of a call."""

    model_config = ConfigDict(strict=True)

    name: str
    arguments: Annotated[dict[str, Any] | str, PlainValidator(call_arguments)]


class ToolCall(BaseModel):
    """A call in an earlier answer."""

    model_config = ConfigDict(strict=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall

    @property
    def part(self) -> Call:
        return Call(self.id, self.function.name, self.function.arguments)


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    # Roles beyond OpenAI's are for the chat template to accept or refuse.
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[Content, PlainValidator(message_content)] = ()
    name: str | None = None
    tool_calls: Items[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None

    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None

    @model_validator(mode="before")
    @classmethod
    def require_content(cls, fields: Any) -> Any:
        """Refuse a message without content, except for calls and their results."""
        optional = isinstance(fields, dict) and fields.get("role") in ("assistant", "tool")
        if isinstance(fields, dict) and fields.get("content") is None and not optional:
            raise PydanticCustomError("content", "content takes a string or a list of text parts")
        return fields

    @model_validator(mode="after")
    def check_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("tool_calls", "tool_calls are of the role assistant")
        return self

    @property
    def text(self) -> str:
        return joined(self.content)

    def turn(self, path: str) -> Turn:
        """Return the message as a turn of the conversation. path: that of the message in the body."""
        content = at(f"{path}.content", self.content, self.role)
        if self.role == "tool":
            return Turn(self.role, (Result(self.tool_call_id, content, name=self.name),), path=path)
        thought = next(filter(None, (self.reasoning, self.reasoning_content, self.thinking)), None)
        parts: tuple[Part, ...] = content if thought is None else (Thinking(thought), *content)
        return Turn(self.role, parts + tuple(call.part for call in self.tool_calls or ()), self.name, path)


def turns_of(messages: Iterable[Message], path: str = "messages") -> tuple[Turn, ...]:
    """Return the conversation's turns. path: that of the messages in the body."""
    return tuple(message.turn(f"{path}.{number}") for number, message in enumerate(messages))
