"""A request's tools and reasoning, and the use that the model must make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """The parts that an answer may have besides text."""

    tools: ToolUse | None = None
    include_reasoning: bool = True
    # The most tokens of the reasoning; None: no limit.
    reasoning_budget: int | None = None

    @property
    def callable(self) -> list[dict[str, Any]] | None:
        """The definitions of the tools that the answer may call; None if it has no calls."""
        return (self.tools and self.tools.callable) or None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, of which there is at least one."""

    # In the form of OpenAI's chat API.
    definitions: list[dict[str, Any]]
    choice: Literal["none", "auto", "required"] = "auto"
    # With the choice "required": the only tool that may be called.
    name: str | None = None
    # The answer may have several calls.
    parallel: bool = True
    # The paths of the definitions' parameters in the body.
    paths: Sequence[str] = ()
    # Schemas that a grammar can enforce, by path; None: the definitions' own.
    schemas: Mapping[str, Any] | None = None

    @property
    def callable(self) -> list[dict[str, Any]]:
        """The definitions of the tools that the answer may call."""
        if self.choice == "none":
            return []
        return [tool for tool in self.definitions if self.name in (None, tool["function"]["name"])]

    def schema(self, tool: dict[str, Any]) -> Any:
        """Return the schema of a tool's arguments as a grammar can enforce it; None where it can't: any arguments."""
        parameters = tool["function"].get("parameters") or ANY_OBJECT
        if self.schemas is None:
            return parameters
        path = self.paths[self.definitions.index(tool)]
        return self.schemas.get(path, ANY_OBJECT if parameters is ANY_OBJECT else None)

    @property
    def validated(self) -> bool:
        """True if calls must be valid: a call is demanded, or a tool is strict."""
        return self.choice == "required" or bool(self.strict)

    @property
    def strict(self) -> list[dict[str, Any]]:
        """The definitions of the tools whose calls must follow their schema."""
        return [tool for tool in self.callable if tool["function"].get("strict")]
