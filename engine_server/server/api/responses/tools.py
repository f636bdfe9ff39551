"""Tools of the responses API, and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field
from pydantic_core import PydanticCustomError

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
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    # The arguments follow the schema.
    strict: bool | None = None

    def definition(self) -> dict[str, Any]:
        """Return the definition in the form of the chat API, which chat templates take."""
        fields = {name: value for name, value in self.model_dump().items() if value is not None}
        del fields["type"]
        return {"type": "function", "function": fields}


Tool = Annotated[FunctionTool, BeforeValidator(function_tool)]


class NamedFunction(BaseModel):
    """A choice of one function."""

    model_config = ConfigDict(strict=True)

    type: Literal["function"]
    name: str


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
