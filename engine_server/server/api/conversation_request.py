"""The request fields that the APIs with one answer to one conversation share."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from engine_server.server.api.chat.template_variables import check_variables
from engine_server.server.api.fields import Ignored, only
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.generation.chat_turns import ChatTurns
from engine_server.server.generation.prompts import ChatSource
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse

if TYPE_CHECKING:
    from engine_server.server.settings import ApiSettings


class ConversationRequest(GenerationRequest):
    """A request of Anthropic's messages API or of OpenAI's responses API. Both have vLLM's sampling fields too."""

    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_variables)] | None = None
    metadata: Ignored = None
    service_tier: Ignored = None
    # A stream always ends with the usage.
    stream_options: Ignored = None

    # Each has a field of its own for it.
    response_format: Annotated[Any, only()] = None
    # Their answers have no place for these.
    n: Annotated[Any, only(1)] = None
    best_of: Annotated[Any, only(1)] = None
    use_beam_search: Annotated[Any, only(False)] = None
    length_penalty: Annotated[Any, only(1.0)] = None
    prompt_logprobs: Annotated[Any, only()] = None
    detokenize: Annotated[Any, only(True)] = None
    return_token_ids: Annotated[Any, only(False)] = None
    return_tokens_as_token_ids: Annotated[Any, only(False)] = None

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools and the use that the answer makes of them. Raises ApiError 400 for a choice of a missing tool."""
        raise NotImplementedError

    @property
    def response_form(self) -> dict[str, Any] | None:
        """The form of the answer's text, as the chat API's response_format."""
        raise NotImplementedError

    def turns(self) -> ChatTurns:
        """Return the conversation as the template takes it, without its tools."""
        raise NotImplementedError

    @property
    def answer_style(self) -> AnswerStyle:
        return AnswerStyle(self.tool_use, reasoning_budget=self.reasoning_budget)

    def check_combinations(self) -> None:
        super().check_combinations()
        _ = self.tool_use  # its choice may be of a tool that is missing

    def source(self, settings: ApiSettings, context: int) -> ChatSource:
        turns = self.turns()
        defaults = settings.default_chat_template_kwargs or {}
        variables = {**defaults, **turns.variables, **(self.chat_template_kwargs or {})}
        return ChatSource(
            conversations=[replace(turns, variables=variables)],
            field=self.ENGINE_FIELDS["prompt"],
            cuts=self.cuts(context),
            cache_salt=self.cache_salt,
        )
