"""The states that the bounded strings of schemas take, and which bounds are dropped where they are too many.

llguidance's lexer keeps its states for as long as a compiled grammar exists, and all requests with the grammar share
them: a state for each character that a bounded string may still have, and for each part of such a character. Equal
strings share theirs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from engine_server.structured.schemas.patterns import STATES, read_pattern

# Of the lexer's states (`compiler.LIMITS`), those that bounded strings may take. The others are for the rest.
MAX_STATES = 40_000
# Those that are left to bounded strings where property names and values take most.
MIN_STATES = 10_000
# States of a format, about.
FORMAT_STATES = 200


class StringRule(NamedTuple):
    """The bounds of a string. Equal ones have the same states."""

    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None
    format: str | None = None

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "StringRule":
        """Return the bounds in a schema."""
        return cls(
            schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern"), schema.get("format")
        )

    @property
    def states(self) -> dict[str, int]:
        """The states for the lengths, and for the pattern."""
        pattern = read_pattern(self.pattern).states if self.pattern is not None else 0
        each = max(STATES, pattern, FORMAT_STATES if self.format is not None else 0)
        return {"length": max(self.min_length, self.max_length or 0) * each, "pattern": pattern}


class Bound(NamedTuple):
    """A kind of bound of a string: "length" or "pattern"."""

    rule: StringRule
    kind: str


def too_large(rules: Iterable[StringRule], literals: int) -> set[Bound]:
    """Return the bounds to drop, the largest first, so that the states of all suffice.

    literals: number of characters of property names and listed values.
    """
    costs = {
        Bound(rule, kind): states for rule in set(rules) for kind, states in rule.states.items() if states
    }
    left, dropped = sum(costs.values()) - max(MAX_STATES - literals, MIN_STATES), set()
    for bound, states in sorted(costs.items(), key=lambda one: (-one[1], one[0].kind, repr(one[0].rule))):
        if left <= 0:
            break
        dropped.add(bound)
        left -= states
    return dropped
