"""A conversation as a chat template takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """A conversation as a chat template takes it."""

    messages: list[dict[str, Any]]
    # Append the beginning of an assistant's message.
    open_answer: bool
    # Leave the last message open, so that the answer continues it.
    continue_last: bool
    # The tools' definitions, in the form of OpenAI's chat API.
    tools: list[dict[str, Any]] | None = None
    # Further variables of the template.
    variables: Mapping[str, Any] = field(default_factory=dict)
    # In place of the model's own template.
    template: str | None = None
    # Add special tokens to those that the template writes itself.
    add_special_tokens: bool = False
