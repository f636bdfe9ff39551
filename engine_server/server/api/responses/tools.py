"""Tools of the responses API, and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field
from pydantic_core import PydanticCustomError

from engine_server.contract import bounds
from engine_server.server.api.chat import tools as chat
from engine_server.server.api.chat.tools import ToolName, check_schema, check_tools
from engine_server.server.api.fields import UNSUPPORTED


def function_tool(value: object) -> object:
    """Refuse tools that OpenAI's servers run by name."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError(
            UNSUPPORTED,
            "is a tool of type {kind}, which is not supported; only functions are",
            {"kind": kind[:64]},
        )
    return value


class FunctionTool(BaseModel):
    """A function that the client runs."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(check_schema)] | None = None
    # The arguments follow the schema.
    strict: bool | None = None

    def chat_tool(self) -> chat.Tool:
        """Return the tool in the form of the chat API, which chat templates take."""
        function = chat.Function(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )
        return chat.Tool(type="function", function=function)


def check_together(tools: list[FunctionTool]) -> list[FunctionTool]:
    """Check what concerns the tools together."""
    check_tools([tool.chat_tool() for tool in tools])
    return tools


Tools = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(function_tool)]],
    Field(max_length=bounds.TOOLS.limit),
    AfterValidator(check_together),
]


class NamedFunction(BaseModel):
    """A choice of one function."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: ToolName


class AllowedTools(BaseModel):
    """A choice of some functions."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]


def supported_choice(value: object) -> object:
    """Refuse choices of tools that aren't supported by name."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise PydanticCustomError(
            UNSUPPORTED,
            "is a choice of type {kind}, which is not supported; supported: function, allowed_tools",
            {"kind": kind[:64]},
        )
    return value


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | Annotated[NamedFunction | AllowedTools, Discriminator("type")],
    BeforeValidator(supported_choice),
]
