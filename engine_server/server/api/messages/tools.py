"""Tools of Anthropic's API, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from engine_server.contract.base import bounds
from engine_server.server.api.chat import tools as chat
from engine_server.server.api.chat.tools import ToolName, check_schema, check_tools
from engine_server.server.api.fields import Items
from engine_server.server.api.ignored import IgnoredTool


def kind_of(value: object) -> str:
    """Return the tag of a tool. A model here doesn't know those that Anthropic defines."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "custom" if kind in (None, "custom") else "other"


class Tool(BaseModel):
    """A tool that the client runs."""

    model_config = ConfigDict(strict=True)

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: Annotated[dict[str, Any], AfterValidator(check_schema)]
    # The arguments follow the schema.
    strict: bool | None = None

    def chat_tool(self) -> chat.Tool:
        """Return the tool in the form of OpenAI's chat API, which chat templates take."""
        function = chat.Function(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return chat.Tool(type="function", function=function)


def tools_by_path(tools: Sequence[Tool | IgnoredTool]) -> dict[str, chat.Tool]:
    """Return the tools in the form of OpenAI's chat API, by the paths of their schemas."""
    return {
        f"tools.{number}.input_schema": tool.chat_tool()
        for number, tool in enumerate(tools)
        if isinstance(tool, Tool)
    }


def chat_tools(tools: Sequence[Tool | IgnoredTool]) -> list[chat.Tool]:
    """Return the tools in the form of OpenAI's chat API, without those that are ignored."""
    return [tool.chat_tool() for tool in tools if isinstance(tool, Tool)]


def check_together(tools: list[Tool | IgnoredTool]) -> list[Tool | IgnoredTool]:
    """Check what concerns the tools together."""
    check_tools(chat_tools(tools))
    return tools


Tools = Annotated[
    Items[
        Annotated[
            Annotated[Tool, Tag("custom")] | Annotated[IgnoredTool, Tag("other")], Discriminator(kind_of)
        ]
    ],
    Field(max_length=bounds.TOOLS.limit),
    AfterValidator(check_together),
]


class ToolChoice(BaseModel):
    """The use that the model must make of its tools."""

    model_config = ConfigDict(strict=True)

    type: Literal["auto", "any", "tool", "none"]
    # For the type "tool".
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def require_name(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("tool_choice", "has the type tool, which needs a name", {})
        return self

    def chat_choice(self) -> str | chat.NamedTool:
        """Return the choice in the form of OpenAI's chat API."""
        if self.type == "tool":
            return chat.NamedTool(name=self.name or "")
        return "required" if self.type == "any" else self.type
