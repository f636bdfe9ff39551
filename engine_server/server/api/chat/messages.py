"""The messages of a conversation, as clients send them and as chat templates take them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from engine_server.server.api.fields import message_text, only


class Message(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(strict=True)

    # Roles beyond OpenAI's are for the chat template to accept or refuse.
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[str, PlainValidator(message_text)]
    name: str | None = None

    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None

    def template_message(self) -> dict[str, str]:
        """Return the message as chat templates know it; they know "developer" by its older name."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content}
        return message if self.name is None else message | {"name": self.name}
