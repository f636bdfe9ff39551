"""The fields of a conversation in requests that don't generate: embeddings of chats, and their tokenization."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from engine_server.contract.base import bounds
from engine_server.engine.conversation.turns import Conversation, Turn
from engine_server.server.api.chat.messages import Message, turns_of
from engine_server.server.api.chat.template_use import check_end, check_template
from engine_server.server.api.chat.template_variables import check_variables
from engine_server.server.api.fields import Items, only
from engine_server.server.api.generation_request import ApiRequest

if TYPE_CHECKING:
    from engine_server.server.settings import ApiSettings


Messages = Annotated[Items[Message], Field(min_length=1, max_length=bounds.MESSAGES.limit)]


class ChatInput(ApiRequest):
    """A conversation, and the options of its chat template."""

    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_variables)] | None = None
    chat_template: str | None = None

    media_io_kwargs: Annotated[Any, only({})] = None
    mm_processor_kwargs: Annotated[Any, only({})] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        check_end(self.continue_final_message, self.add_generation_prompt)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self.messages or ())

    def conversation(self, settings: ApiSettings, open_answer: bool) -> Conversation:
        """Return the conversation. open_answer: the default of add_generation_prompt. Raises ApiError 400."""
        check_template(self.chat_template, settings)
        if self.add_generation_prompt is not None:
            open_answer = self.add_generation_prompt
        return Conversation(
            turns=self.turns,
            open_answer=open_answer and not self.continue_final_message,
            continue_last=bool(self.continue_final_message),
            variables=(settings.default_chat_template_kwargs or {}) | (self.chat_template_kwargs or {}),
            template=self.chat_template,
            add_special_tokens=bool(self.add_special_tokens),
        )
