"""Tools of OpenAI's chat API, and the choice between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from engine_server.contract.base import bounds
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api.fields import UNSUPPORTED, Items, check_bound, check_depth
from engine_server.server.api.ignored import IgnoredTool
from engine_server.server.generation.tool_use import ToolUse
from engine_server.server.http.errors import ApiError

MAX_NAME_LENGTH = 128
ToolName = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_LENGTH}}}$")]


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Check that a schema is one of an object, and not deeper than its users can recurse."""
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("schema", 'is a JSON schema of the type "object"')
    check_depth(schema)
    return schema


class Function(BaseModel):
    """A function that the client runs."""

    model_config = ConfigDict(strict=True)

    name: ToolName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(check_schema)] | None = None
    # Calls follow the schema.
    strict: bool | None = None


class Tool(BaseModel):
    """A tool's definition."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    function: Function

    def definition(self) -> dict[str, Any]:
        return {"type": "function", "function": self.function.model_dump(exclude_none=True)}


def check_tools(tools: list[Tool]) -> list[Tool]:
    """Check what concerns the tools together."""
    names = [tool.function.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise PydanticCustomError("tools", "has the name {name} twice", {"name": repeated})
    check_bound(bounds.TOOL_BYTES, sum(len(json.dumps(tool.definition())) for tool in tools))
    return tools


def offered_tool(value: object, read: ValidatorFunctionWrapHandler) -> Tool | IgnoredTool:
    """Return a tool, of which one of another type is ignored. A union would add its tags to the paths of errors."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        return IgnoredTool(type=kind)
    tool: Tool = read(value)
    return tool


def known_tools(tools: Sequence[Tool | IgnoredTool]) -> list[Tool]:
    """Return the tools without those that are ignored."""
    return [tool for tool in tools if isinstance(tool, Tool)]


def check_together(tools: list[Tool | IgnoredTool]) -> list[Tool | IgnoredTool]:
    check_tools(known_tools(tools))
    return tools


OfferedTool = Annotated[Tool, WrapValidator(offered_tool)]
Tools = Annotated[Items[OfferedTool], Field(max_length=bounds.TOOLS.limit), AfterValidator(check_together)]


class NamedTool(BaseModel):
    """The choice of one tool."""

    name: ToolName


def tool_choice(value: object) -> str | NamedTool | None:
    """Return `tool_choice`: a mode, or the tool that must be called."""
    match value:
        case None | "none" | "auto" | "required":
            return value
        case {"type": "function", "function": {"name": str(name)}}:
            return NamedTool.model_validate({"name": name})
        case {"type": "allowed_tools" | "custom" as kind}:
            raise PydanticCustomError(
                UNSUPPORTED, "of the type {kind} is not supported; the type function is", {"kind": kind}
            )
    raise PydanticCustomError(
        "tool_choice",
        'takes "none", "auto", "required" or {{"type": "function", "function": {{"name": ...}}}}',
    )


ToolChoice = Annotated[str | NamedTool | None, PlainValidator(tool_choice)]


def tools_by_path(tools: Sequence[Tool | IgnoredTool]) -> dict[str, Tool]:
    """Return the tools without those that are ignored, by the paths of their parameters."""
    return {
        f"tools.{number}.function.parameters": tool
        for number, tool in enumerate(tools)
        if isinstance(tool, Tool)
    }


def tool_use(
    tools: Mapping[str, Tool], choice: str | NamedTool | None, parallel: bool | None
) -> ToolUse | None:
    """Return the use of the tools, None for a request without tools. Raises ApiError 400.

    tools: by the paths of their parameters.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                "tool_choice demands a call, and there are no tools",
                param="tool_choice",
            )
        return None
    definitions = [tool.definition() for tool in tools.values()]
    name = choice.name if isinstance(choice, NamedTool) else None
    names = [tool.function.name for tool in tools.values()]
    if name is not None and name not in names:
        allowed = ", ".join(names)[:200]
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"tool_choice: there is no tool {name}; the tools are {allowed}",
            param="tool_choice",
        )
    mode: Any = "required" if name is not None else choice or "auto"
    return ToolUse(definitions, mode, name, parallel is not False, tuple(tools))
