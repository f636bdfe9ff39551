"""What the functions of recurrences have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class RecurrentFunction:
    """A function in place of one that mixers call as a global of their forward. It continues the step's sequences."""

    # The name of the function in transformers, a global of mixers' forwards.
    replaces: ClassVar[str]
    # The model's own, which computes one sequence from a given state.
    original: Callable[..., Any]
