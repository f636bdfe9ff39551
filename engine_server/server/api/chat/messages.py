"""The messages of a conversation, as clients send them and as chat templates take them."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from engine_server.server.api.content import Content, MediaUse, media_of, read_content, text_of
from engine_server.server.api.fields import call_arguments, only

# Roles whose turns at the beginning say how to answer.
INSTRUCTING = ("system", "developer")


def message_content(value: object) -> Content:
    return read_content(value, {"text": "text"})


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

    def template_call(self) -> dict[str, Any]:
        """Return the call as chat templates know it."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        call = {"type": "function", "function": function}
        return call if self.id is None else {"id": self.id, **call}


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    # Roles beyond OpenAI's are for the chat template to accept or refuse.
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[Content, PlainValidator(message_content)] = ()
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

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
        return text_of(self.content)

    def template_message(self) -> dict[str, Any]:
        """Return the message as chat templates know it, apart from its role."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        reasoning = self.reasoning_content if self.reasoning is None else self.reasoning
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.template_call() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if reasoning is not None:
            message["reasoning"] = message["reasoning_content"] = reasoning
        return message


def template_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the conversation's turns."""
    return with_known_roles([message.template_message() for message in messages])


def media_in(messages: Sequence[Message], path: str = "messages") -> list[MediaUse]:
    """Return the media of a conversation. path: that of the messages in the body."""
    return media_of(
        [(f"{path}.{number}.content", one.role, one.content) for number, one in enumerate(messages)]
    )


def with_known_roles(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation without the role "developer", which few templates know.

    At the beginning such turns join the system's, of which templates take one. A later one becomes a turn of the user
    in its place: moved to the beginning, it would change the prefix of every prompt after it, which the cache has.
    """
    leading = list(takewhile(lambda turn: turn["role"] in INSTRUCTING, turns))
    rest = [
        {**turn, "role": "user"} if turn["role"] == "developer" else turn for turn in turns[len(leading) :]
    ]
    if all(turn["role"] == "system" for turn in leading):
        return [*leading, *rest]
    return [{"role": "system", "content": "\n\n".join(turn["content"] for turn in leading)}, *rest]
