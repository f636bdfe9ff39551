"""The body of a request of Anthropic's messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.conversation.turns import Turn
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.chat.template_variables import reasoning_variables
from engine_server.server.api.chat.tools import tool_use
from engine_server.server.api.conversation_request import ConversationRequest
from engine_server.server.api.fields import Ignored, Items, only, stop_strings
from engine_server.server.api.ignored import IgnoredPart, ignored_tools
from engine_server.server.api.messages.blocks import TextBlock, TextContent
from engine_server.server.api.messages.context_edits import ContextManagement
from engine_server.server.api.messages.tools import ToolChoice, Tools, tools_by_path
from engine_server.server.api.messages.turns import Message, turns_of
from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.http.errors import ApiError

FORM_FIELD = "output_config.format"


class Thinking(BaseModel):
    """The reasoning before the answer."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    # The most tokens of the reasoning.
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    # "omitted" leaves the reasoning's text out of the answer.
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(BaseModel):
    """JSON that follows a schema."""

    model_config = ConfigDict(strict=True)

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """The form of the answer, and the effort of its reasoning."""

    model_config = ConfigDict(strict=True)

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class MessagesRequest(ConversationRequest):
    """The body of a request."""

    ID_PREFIX: ClassVar[str] = "msg_"
    ENGINE_FIELDS: ClassVar[Mapping[str, str]] = {
        "prompt": "messages",
        "stop": "stop_sequences",
        "response_format": FORM_FIELD,
    }

    # Required, as in Anthropic's API.
    model: str
    messages: Annotated[Items[Message], Field(min_length=1, max_length=bounds.MESSAGES.limit)]
    max_tokens: int
    system: TextContent | None = None
    stop: Annotated[list[str], PlainValidator(stop_strings)] = Field(
        default_factory=list, alias="stop_sequences"
    )
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # The beta's name of output_config.format.
    output_format: JsonFormat | None = None
    context_management: ContextManagement | None = None

    # Every prompt's prefix is cached anyway.
    cache_control: Ignored = None
    inference_geo: Ignored = None
    speed: Ignored = None
    billing_policy: Ignored = None
    diagnostics: Ignored = None
    fallbacks: Ignored = None
    fallback_credit_token: Ignored = None

    compaction: Annotated[Any, only()] = None
    container: Annotated[Any, only()] = None
    mcp_servers: Annotated[Any, only([])] = None
    thread: Annotated[Any, only()] = None

    @cached_property
    def tool_use(self) -> ToolUse | None:
        tools = tools_by_path(self.tools or [])
        choice = self.tool_choice
        if choice is None:
            return tool_use(tools, None, None)
        return tool_use(tools, choice.chat_choice(), not choice.disable_parallel_tool_use)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self.system or (), self.messages)

    @property
    def ignored_tools(self) -> Sequence[IgnoredPart]:
        return ignored_tools(self.tools or [])

    @property
    def reasoning_budget(self) -> int | None:
        budget = self.thinking.budget_tokens if self.thinking else None
        return super().reasoning_budget if budget is None else budget

    @property
    def reasoning_hints(self) -> Sequence[IgnoredPart]:
        hint = self.thinking is not None and self.thinking.budget_tokens is not None
        return [IgnoredPart("thinking", "budget_tokens")] if hint else []

    @property
    def response_form(self) -> dict[str, Any] | None:
        form = self.output_format or (self.output_config and self.output_config.format)
        return {"type": "json_schema", "json_schema": {"schema": form.json_schema}} if form else None

    @property
    def engine_fields(self) -> Mapping[str, str]:
        fields = super().engine_fields
        if self.output_format is None or fields["structured_outputs"] != FORM_FIELD:
            return fields
        return {**fields, "structured_outputs": "output_format"}

    def check_combinations(self) -> None:
        super().check_combinations()
        if self.output_format and self.output_config and self.output_config.format:
            message = f"output_format and {FORM_FIELD} are given; an answer has one format"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="output_format")

    def with_messages(self, messages: list[Message]) -> MessagesRequest:
        """Return the request with another conversation."""
        request = self.model_copy(update={"messages": messages})
        for cached in ("turns", "media"):  # those of the other
            request.__dict__.pop(cached, None)
        return request

    def sampling_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        return self.shared_parameters(defaults) | {"max_tokens": self.max_tokens, "logprobs": None}

    @property
    def continues(self) -> bool:
        """True if the answer continues the last message. Raises ApiError 400 for one that can't be continued."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        if not last.content or not isinstance(last.content[-1], TextBlock):
            message = (
                "messages: the answer can continue a last message of the assistant only if it ends with text"
            )
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="messages")
        return True

    @property
    def variables(self) -> Mapping[str, Any]:
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        return reasoning_variables(thinks, self.output_config.effort if self.output_config else None)


class CountTokensRequest(MessagesRequest):
    """The body of a request to count tokens: the same fields, of which those for the answer do nothing."""

    max_tokens: int | None = None  # type: ignore[assignment]
