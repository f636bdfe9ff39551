"""Tools of Anthropic's API, and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engine_server.contract import bounds
from engine_server.server.api.chat import tools as chat
from engine_server.server.api.chat.tools import ToolName, check_schema, check_tools
from engine_server.server.api.fields import UNSUPPORTED


def custom_tool(value: object) -> object:
    """Refuse tools that Anthropic defines by name: a model here doesn't know them."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise PydanticCustomError(
            UNSUPPORTED,
            "is a tool of type {kind}, which is not supported; only tools with an input_schema of their own are",
            {"kind": kind[:64]},
        )
    return value


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


def check_together(tools: list[Tool]) -> list[Tool]:
    """Check what concerns the tools together."""
    check_tools([tool.chat_tool() for tool in tools])
    return tools


Tools = Annotated[
    list[Annotated[Tool, BeforeValidator(custom_tool)]],
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
