"""The request fields that the APIs with one answer to one conversation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from engine_server.engine.conversation.turns import Conversation, Turn
from engine_server.server.api.chat.template_variables import check_variables
from engine_server.server.api.content import MediaUse, media_of
from engine_server.server.api.fields import Ignored, only
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.generation.prompts import ChatSource
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse

if TYPE_CHECKING:
    from engine_server.server.conversation.layout import Layout
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

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of the conversation."""
        raise NotImplementedError

    @property
    def continues(self) -> bool:
        """True if the answer continues the last turn."""
        raise NotImplementedError

    @property
    def variables(self) -> Mapping[str, Any]:
        """Variables of the chat template that the API's own fields set."""
        raise NotImplementedError

    @cached_property
    def media(self) -> Sequence[MediaUse]:
        return media_of(self.turns)

    @property
    def answer_style(self) -> AnswerStyle:
        return AnswerStyle(self.tool_use, reasoning_budget=self.reasoning_budget)

    def check_combinations(self) -> None:
        super().check_combinations()
        _ = self.tool_use  # its choice may be of a tool that is missing

    def source(self, settings: ApiSettings, layout: Layout, context: int) -> ChatSource:
        defaults = settings.default_chat_template_kwargs or {}
        continues = self.continues
        conversation = Conversation(
            turns=self.turns,
            open_answer=not continues,
            continue_last=continues,
            variables={**defaults, **self.variables, **(self.chat_template_kwargs or {})},
        )
        return ChatSource(
            conversations=[chat_prompt(conversation, layout, self.tool_use)],
            field=self.ENGINE_FIELDS["prompt"],
            most_tokens=None if self.cuts(context) else context,
            cuts=self.cuts(context),
            cache_salt=self.cache_salt,
        )
