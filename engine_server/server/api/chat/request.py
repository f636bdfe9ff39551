"""The body of a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.conversation.turns import Conversation, Turn
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.chat.messages import Message, turns_of
from engine_server.server.api.chat.template_use import check_end, check_template
from engine_server.server.api.chat.template_variables import (
    Effort,
    ThinkingSwitch,
    check_variables,
    effort_variables,
    reasoning_variables,
    switched,
)
from engine_server.server.api.chat.tools import ToolChoice, Tools, tool_use, tools_by_path
from engine_server.server.api.content import MediaUse, media_of
from engine_server.server.api.fields import Ignored, Items, NamedTexts, only
from engine_server.server.api.generation_request import GenerationRequest
from engine_server.server.api.ignored import IgnoredPart, ignored_tools
from engine_server.server.conversation.chat_prompt import chat_prompt
from engine_server.server.generation.prompts import ChatSource
from engine_server.server.generation.tool_use import AnswerStyle, ToolUse
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.beam_search import BeamSearchParams
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.settings import ApiSettings


Messages = Annotated[Items[Message], Field(min_length=1, max_length=bounds.MESSAGES.limit)]


class ChatFields(GenerationRequest):
    """The fields of a request besides its messages."""

    ID_PREFIX: ClassVar[str] = "chatcmpl-"
    ENGINE_FIELDS: ClassVar[Mapping[str, str]] = {"prompt": "messages", "logprobs": "top_logprobs"}

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Items[NamedTexts] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(check_variables)] | None = None
    return_prompt_text: bool | None = None

    metadata: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None

    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    # Other servers' switches of the reasoning; chat_template_kwargs go first.
    enable_thinking: bool | None = None
    thinking: bool | ThinkingSwitch | None = None

    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    moderation: Annotated[Any, only()] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only("medium")] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                ErrorCode.INVALID_VALUE, "top_logprobs needs logprobs to be true", param="top_logprobs"
            )
        check_end(self.continue_final_message, self.add_generation_prompt)

    def sampling_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.shared_parameters(defaults) | {
            "max_tokens": self._max_tokens(defaults),
            "logprobs": logprobs,
        }

    def beam_search_params(self, defaults: Mapping[str, Any]) -> BeamSearchParams | None:
        return self.to_beam_search_params(self._max_tokens(defaults))

    def _max_tokens(self, defaults: Mapping[str, Any]) -> int | None:
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return defaults.get("max_tokens") if max_tokens is None else max_tokens

    @property
    def conversations(self) -> list[list[Message]]:
        """The messages of each prompt."""
        raise NotImplementedError

    @cached_property
    def turns(self) -> list[tuple[Turn, ...]]:
        """The turns of each conversation."""
        raise NotImplementedError

    @cached_property
    def media(self) -> Sequence[MediaUse]:
        return [one for turns in self.turns for one in media_of(turns)]

    @property
    def reasoning_switches(self) -> Sequence[IgnoredPart]:
        if self.chat_template is not None:  # which may read them
            return []
        given = (name for name in ("enable_thinking", "thinking") if getattr(self, name) is not None)
        return [IgnoredPart(name, "switch") for name in given]

    @property
    def opens_answer(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @cached_property
    def tool_use(self) -> ToolUse | None:
        return tool_use(tools_by_path(self.tools or ()), self.tool_choice, self.parallel_tool_calls)

    @property
    def ignored_tools(self) -> Sequence[IgnoredPart]:
        return ignored_tools(self.tools or ())

    @property
    def answer_style(self) -> AnswerStyle:
        return AnswerStyle(self.tool_use, self.include_reasoning is not False, self.reasoning_budget)

    def source(self, settings: ApiSettings, layout: Layout, context: int) -> ChatSource:
        conversations = [self.conversation(turns, settings) for turns in self.turns]
        return ChatSource(
            conversations=[chat_prompt(one, layout, self.tool_use) for one in conversations],
            field="messages",
            most_tokens=None if self.cuts(context) else context,
            cuts=self.cuts(context),
            cache_salt=self.cache_salt,
        )

    def conversation(self, turns: tuple[Turn, ...], settings: ApiSettings) -> Conversation:
        check_template(self.chat_template, settings)
        variables = {
            **(settings.default_chat_template_kwargs or {}),
            **effort_variables(self.reasoning_effort),
            **reasoning_variables(switched(self.thinking), None),
            **reasoning_variables(self.enable_thinking, None),
            **(self.chat_template_kwargs or {}),
        }
        if self.documents is not None:
            variables["documents"] = self.documents
        return Conversation(
            turns=turns,
            open_answer=self.opens_answer,
            continue_last=bool(self.continue_final_message),
            variables=variables,
            template=self.chat_template,
            add_special_tokens=bool(self.add_special_tokens),
        )


class ChatRequest(ChatFields):
    """The body of a request with one conversation."""

    messages: Messages

    @property
    def conversations(self) -> list[list[Message]]:
        return [self.messages]

    @cached_property
    def turns(self) -> list[tuple[Turn, ...]]:
        return [turns_of(self.messages)]


class BatchChatRequest(ChatFields):
    """The body of a request with several conversations, each of which gets one choice of a whole answer."""

    messages: Annotated[Items[Messages], Field(min_length=1, max_length=bounds.PROMPTS.limit)]

    stream: Annotated[Any, only(False)] = None
    n: Annotated[Any, only(1)] = None
    best_of: Annotated[Any, only(1)] = None
    use_beam_search: Annotated[Any, only(False)] = None
    prompt_logprobs: Annotated[Any, only()] = None
    return_prompt_text: Annotated[Any, only(False)] = None

    @property
    def conversations(self) -> list[list[Message]]:
        return self.messages

    @cached_property
    def turns(self) -> list[tuple[Turn, ...]]:
        return [turns_of(messages, f"messages.{number}") for number, messages in enumerate(self.messages)]
