"""The fields of a conversation in requests that don't generate: embeddings of chats, and their tokenization."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from engine_server.server.api.chat.messages import Message
from engine_server.server.api.fields import only
from engine_server.server.api.generation_request import ApiRequest
from engine_server.server.generation.prompts import ChatTurns
from engine_server.server.http.errors import ApiError

# Variables of the chat template that the server sets itself.
RESERVED_VARIABLES = {
    "add_generation_prompt", "chat_template", "continue_final_message", "documents", "messages", "tokenize", "tools",
}  # fmt: skip


class ChatInput(ApiRequest):
    """A conversation, and the options of its chat template."""

    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None

    chat_template: Annotated[Any, only()] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true"
            raise ApiError(400, message, param="continue_final_message")
        if reserved := RESERVED_VARIABLES.intersection(self.chat_template_kwargs or {}):
            message = f"chat_template_kwargs has {min(reserved)}, which the server sets itself"
            raise ApiError(400, message, param="chat_template_kwargs")

    def turns(self, open_answer: bool) -> ChatTurns:
        """Return the conversation. open_answer: the default of add_generation_prompt."""
        if self.add_generation_prompt is not None:
            open_answer = self.add_generation_prompt
        return ChatTurns(
            [message.template_message() for message in self.messages or ()],
            open_answer=open_answer and not self.continue_final_message,
            continue_last=bool(self.continue_final_message),
            tools=self.tools,
            variables=self.chat_template_kwargs or {},
            add_special_tokens=bool(self.add_special_tokens),
        )
