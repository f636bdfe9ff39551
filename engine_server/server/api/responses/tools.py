"""Tools of the responses API, and the choice between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from engine_server.contract.base import bounds
from engine_server.server.api.chat import tools as chat
from engine_server.server.api.chat.tools import MAX_NAME_LENGTH, ToolName, check_schema, check_tools
from engine_server.server.api.fields import UNSUPPORTED, Items, check_bound
from engine_server.server.api.ignored import IgnoredPart, IgnoredTool

# The parameter of the function that stands for a custom tool in the prompt.
CUSTOM_PARAMETER = "input"


class FunctionTool(BaseModel):
    """A function that the client runs."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(check_schema)] | None = None
    # The arguments follow the schema.
    strict: bool | None = None

    def function(self, name: str) -> chat.Function:
        return chat.Function(
            name=name, description=self.description, parameters=self.parameters, strict=self.strict
        )


class CustomFormat(BaseModel):
    """The form of a custom tool's text. A grammar has no effect."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str


class CustomTool(BaseModel):
    """A tool that takes one text, which the client runs."""

    model_config = ConfigDict(strict=True)

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None

    def function(self, name: str) -> chat.Function:
        """Return the function that stands for the tool in the prompt: chat templates know no other tools."""
        parameters = {
            "type": "object",
            "properties": {CUSTOM_PARAMETER: {"type": "string"}},
            "required": [CUSTOM_PARAMETER],
            "additionalProperties": False,
        }
        return chat.Function(name=name, description=self.description, parameters=parameters)


def kind_of(value: object) -> str:
    """Return the tag of a tool."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in ("function", "custom", "namespace") else "other"


CalledTool = Annotated[FunctionTool, Tag("function")] | Annotated[CustomTool, Tag("custom")]
OtherTool = Annotated[IgnoredTool, Tag("other")]


class NamespaceTool(BaseModel):
    """Tools under one name, by which the client tells them from others of their names."""

    model_config = ConfigDict(strict=True)

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[
        Items[Annotated[CalledTool | OtherTool, Discriminator(kind_of)]], Field(max_length=bounds.TOOLS.limit)
    ]


Tool = Annotated[CalledTool | Annotated[NamespaceTool, Tag("namespace")] | OtherTool, Discriminator(kind_of)]


class ToolTarget(NamedTuple):
    """The tool that a name in the prompt stands for."""

    name: str
    namespace: str | None
    # It takes one text.
    custom: bool


def template_name(namespace: str | None, name: str) -> str:
    """Return the name of a tool in the prompt."""
    return name if namespace is None else f"{namespace}__{name}"


def each_tool(tools: Sequence[Any]) -> Iterator[tuple[str, str | None, Any]]:
    """Yield each tool with its path in the body and its namespace."""
    for number, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for inner, one in enumerate(tool.tools):
                yield f"tools.{number}.tools.{inner}", tool.name, one
        else:
            yield f"tools.{number}", None, tool


def chat_tools(tools: Sequence[Any]) -> list[chat.Tool]:
    """Return the tools in the form of the chat API, which chat templates take, without those that are ignored."""
    return [
        chat.Tool(type="function", function=tool.function(template_name(namespace, tool.name)))
        for _, namespace, tool in each_tool(tools)
        if not isinstance(tool, IgnoredTool)
    ]


def tools_by_path(tools: Sequence[Any]) -> dict[str, chat.Tool]:
    """Return the tools in the form of the chat API, by the paths of their parameters."""
    paths = [path for path, _, tool in each_tool(tools) if not isinstance(tool, IgnoredTool)]
    return {f"{path}.parameters": tool for path, tool in zip(paths, chat_tools(tools), strict=True)}


def tool_targets(tools: Sequence[Any]) -> Mapping[str, ToolTarget]:
    """Return the tools by the names that a model may call them: those of the prompt, and bare ones that are unique."""
    found = [
        ToolTarget(tool.name, namespace, isinstance(tool, CustomTool))
        for _, namespace, tool in each_tool(tools)
        if not isinstance(tool, IgnoredTool)
    ]
    counts = Counter(target.name for target in found)
    bare = {target.name: target for target in found if counts[target.name] == 1}
    return bare | {template_name(target.namespace, target.name): target for target in found}


def ignored_tools(tools: Sequence[Any]) -> list[IgnoredPart]:
    return [
        IgnoredPart(path, tool.type) for path, _, tool in each_tool(tools) if isinstance(tool, IgnoredTool)
    ]


def ignored_grammars(tools: Sequence[Any]) -> list[IgnoredPart]:
    return [
        IgnoredPart(f"{path}.format", tool.format.type)
        for path, _, tool in each_tool(tools)
        if isinstance(tool, CustomTool) and tool.format is not None and tool.format.type != "text"
    ]


def custom_input(arguments: str) -> str:
    """Return the text that a model passed to a custom tool: the one string of its arguments, or what it wrote."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    text = found.get(CUSTOM_PARAMETER) if isinstance(found, dict) else found
    return text if isinstance(text, str) else arguments


def check_together(tools: list[Any]) -> list[Any]:
    """Check what concerns the tools together."""
    every = [*each_tool(tools)]
    check_bound(bounds.TOOLS, len(every))
    named = [tool for tool in every if not isinstance(tool[2], IgnoredTool)]
    for path, namespace, tool in named:
        if len(template_name(namespace, tool.name)) > MAX_NAME_LENGTH:
            message = "{path} has a name that is too long with its namespace: at most {limit} characters"
            raise PydanticCustomError("tools", message, {"path": path, "limit": MAX_NAME_LENGTH})
    check_tools(chat_tools(tools))
    return tools


Tools = Annotated[Items[Tool], Field(max_length=bounds.TOOLS.limit), AfterValidator(check_together)]


class NamedTool(BaseModel):
    """A choice of one tool."""

    model_config = ConfigDict(strict=True)

    type: Literal["function", "custom"]
    name: ToolName
    namespace: ToolName | None = None

    def template_name(self, targets: Mapping[str, ToolTarget]) -> str:
        """Return the tool's name in the prompt; the name as it is if there is no such tool."""
        name = template_name(self.namespace, self.name)
        target = targets.get(name)
        return name if target is None else template_name(target.namespace, target.name)


class AllowedTools(BaseModel):
    """A choice of some tools."""

    model_config = ConfigDict(strict=True)

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Items[NamedTool], Field(min_length=1)]


def supported_choice(value: object) -> object:
    """Refuse choices of tools that aren't supported by name."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "custom", "allowed_tools"):
        raise PydanticCustomError(
            UNSUPPORTED,
            "is a choice of type {kind}, which is not supported; supported: function, custom, allowed_tools",
            {"kind": kind[:64]},
        )
    return value


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedTools, Discriminator("type")],
    BeforeValidator(supported_choice),
]
