"""The body of a request of the responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.contract.wire.stream_ends import RESPONSE_ID
from engine_server.engine.conversation.turns import Turn
from engine_server.requests.validation import MAX_INT32
from engine_server.server.api.chat.template_variables import Effort, effort_variables
from engine_server.server.api.chat.tools import NamedTool, tool_use
from engine_server.server.api.conversation_request import ConversationRequest
from engine_server.server.api.fields import UNSUPPORTED, Ignored, Items, NamedTexts, Unsupported, only
from engine_server.server.api.ignored import IgnoredPart, IgnoredTool
from engine_server.server.api.responses.body import RequestEcho
from engine_server.server.api.responses.items import Input, MessageItem, turns_of
from engine_server.server.api.responses.tools import (
    AllowedTools,
    ToolChoice,
    Tools,
    ToolTarget,
    ignored_grammars,
    ignored_tools,
    tool_targets,
    tools_by_path,
)
from engine_server.server.api.responses.tools import NamedTool as NamedChoice
from engine_server.server.generation.prompts import Cut
from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.http.errors import ApiError

LOGPROBS = "message.output_text.logprobs"
STATELESS = "answers are not stored here: send the whole input, with the items of earlier answers"


def stateless(value: object) -> object:
    """Refuse a field that needs stored answers."""
    if value:
        raise PydanticCustomError(UNSUPPORTED, "is not supported: " + STATELESS, {})
    return value


NeedsStore = Annotated[Any, Unsupported(stateless)]


class ReasoningOptions(BaseModel):
    """The reasoning before the answer."""

    model_config = ConfigDict(strict=True)

    effort: Effort | None = None
    # There are no summaries: the reasoning itself is in the answer.
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(BaseModel):
    """The form of the answer's text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text", "json_object", "json_schema"]
    # For the type "json_schema".
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """Options of the answer's text."""

    model_config = ConfigDict(strict=True)

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(ConversationRequest):
    """The body of a request."""

    ID_PREFIX: ClassVar[str] = RESPONSE_ID
    ENGINE_FIELDS: ClassVar[Mapping[str, str]] = {
        "prompt": "input",
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
        "response_format": "text.format",
    }

    input: Annotated[Input, Field(min_length=1, max_length=bounds.MESSAGES.limit)]
    instructions: str | None = None
    max_tokens: int | None = Field(default=None, alias="max_output_tokens")
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Items[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    # vLLM's: the answer has the prompt and the output as the model sees them.
    enable_response_messages: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: NamedTexts | None = None
    user: str | None = None

    previous_response_id: NeedsStore = None
    conversation: NeedsStore = None
    background: NeedsStore = None
    prompt_template: NeedsStore = Field(default=None, alias="prompt")
    # Always false in the answer.
    store: Ignored = None
    # It limits tools that the server runs.
    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    access_programs: Ignored = None
    background_options: Ignored = None
    image: Ignored = None

    context_management: Annotated[Any, only([])] = None
    moderation: Annotated[Any, only()] = None

    def check_combinations(self) -> None:
        super().check_combinations()
        form = self.text and self.text.format
        if form and form.type == "json_schema" and form.json_schema is None:
            raise ApiError(ErrorCode.MISSING_FIELD, "text.format needs a schema", param="text.format.schema")

    @cached_property
    def tool_use(self) -> ToolUse | None:
        tools = tools_by_path(self.tools or [])
        match self.tool_choice:
            case NamedChoice() as choice:
                named = NamedTool.model_construct(name=choice.template_name(self.tool_targets))
                return tool_use(tools, named, self.parallel_tool_calls)
            case AllowedTools(mode=mode, tools=allowed):
                names = {tool.template_name(self.tool_targets) for tool in allowed}
                if missing := names - {tool.function.name for tool in tools.values()}:
                    message = f"tool_choice: there is no tool {min(missing)}"
                    raise ApiError(ErrorCode.INVALID_VALUE, message, param="tool_choice")
                allowed_tools = {path: tool for path, tool in tools.items() if tool.function.name in names}
                return tool_use(allowed_tools, mode, self.parallel_tool_calls)
            case choice:
                return tool_use(tools, choice, self.parallel_tool_calls)

    @cached_property
    def tool_targets(self) -> Mapping[str, ToolTarget]:
        """The tools by the names that a model may call them."""
        return tool_targets(self.tools or [])

    @property
    def ignored_tools(self) -> Sequence[IgnoredPart]:
        return ignored_tools(self.tools or [])

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self.instructions, self.input)

    @property
    def ignored(self) -> Sequence[IgnoredPart]:
        return [*super().ignored, *ignored_grammars(self.tools or [])]

    @property
    def response_form(self) -> dict[str, Any] | None:
        form = self.text and self.text.format
        if not form or form.type == "text":
            return None
        return {"type": form.type, "json_schema": {"schema": form.json_schema}}

    def sampling_parameters(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        max_tokens = defaults.get("max_tokens") if self.max_tokens is None else self.max_tokens
        return self.shared_parameters(defaults) | {"max_tokens": max_tokens, "logprobs": self._logprobs}

    def cuts(self, context: int) -> list[Cut]:
        cuts = super().cuts(context)
        if self.truncation == "auto":
            answer = min(self.max_tokens or context // 4, context - 1)
            cuts.insert(0, Cut(context - answer, "left"))
        return cuts

    @property
    def _logprobs(self) -> int | None:
        wanted = self.top_logprobs or LOGPROBS in (self.include or [])
        return (self.top_logprobs or 0) if wanted else None

    @property
    def continues(self) -> bool:
        last = self.input[-1]
        return isinstance(last, MessageItem) and last.is_open

    @property
    def variables(self) -> Mapping[str, Any]:
        return effort_variables(self.reasoning.effort if self.reasoning else None)

    def echo(self, defaults: Mapping[str, Any]) -> RequestEcho:
        """Return the fields that the answer repeats, with the values in force."""
        text = self.text or TextOptions()
        given = {"temperature": self.temperature, "top_p": self.top_p}
        sampling = {
            name: defaults.get(name, 1.0) if value is None else value for name, value in given.items()
        }
        tools = [tool.model_dump() for tool in self.tools or [] if not isinstance(tool, IgnoredTool)]
        choice = self.tool_choice
        return RequestEcho(
            instructions=self.instructions,
            max_output_tokens=self.max_tokens,
            metadata=self.metadata or {},
            parallel_tool_calls=self.parallel_tool_calls is not False,
            reasoning=(self.reasoning or ReasoningOptions()).model_dump(),
            temperature=sampling["temperature"],
            text={
                "format": (text.format or TextFormat(type="text")).model_dump(
                    by_alias=True, exclude_none=True
                ),
                "verbosity": text.verbosity or "medium",
            },
            tool_choice=choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
            tools=tools,
            top_logprobs=self.top_logprobs or 0,
            top_p=sampling["top_p"],
            truncation=self.truncation or "disabled",
            user=self.user,
        )
