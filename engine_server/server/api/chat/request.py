"""The body of a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from engine_server.contract import bounds
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.chat.messages import Message
from engine_server.server.api.fields import only
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.generation.prompts import ChatTurns
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.requests.sampling_params import SamplingParams


class ChatRequest(GenerationRequest):
    """The body of a request."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=bounds.MESSAGES.limit)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None
    chat_template: Annotated[Any, only()] = None
    chat_template_kwargs: Annotated[Any, only({})] = None
    documents: Annotated[Any, only([])] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true"
            raise ApiError(400, message, param="continue_final_message")

    def sampling_params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if max_tokens is None:
            max_tokens = defaults.get("max_tokens")
        return self.to_sampling_params(
            defaults, max_tokens, (self.top_logprobs or 0) if self.logprobs else None
        )

    def turns(self) -> ChatTurns:
        continue_last = bool(self.continue_final_message)
        open_answer = not continue_last if self.add_generation_prompt is None else self.add_generation_prompt
        messages = [message.template_message() for message in self.messages]
        return ChatTurns(messages, open_answer, continue_last)
