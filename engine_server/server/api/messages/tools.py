"""Tools of Anthropic's API, and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

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
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any]
    # The arguments follow the schema.
    strict: bool | None = None

    def definition(self) -> dict[str, Any]:
        """Return the definition in the form of OpenAI's chat API, which chat templates take."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


CustomTool = Annotated[Tool, BeforeValidator(custom_tool)]


class ToolChoice(BaseModel):
    """The use that the model must make of its tools."""

    model_config = ConfigDict(strict=True)

    type: Literal["auto", "any", "tool", "none"]
    # For the type "tool".
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
