"""What a schema allows: its types, and of each type the values if it lists them.

Schemas are those of `relax`: references lead to the root's `$defs`.
"""

from typing import Any, Self

from engine_server.structured.schemas.keywords import TYPES
from engine_server.structured.schemas.values import canonical, json_type

DEFINITION = "#/$defs/"
# Numbers that are no integers are the type "number" here.
PARTS = {"number": ("number", "integer")}


class Allowed(dict[str, tuple[Any, ...] | None]):
    """The values that a schema allows, by type: those it lists; None for any value of the type, or unclear ones."""

    @classmethod
    def of_types(cls, names: Any) -> Self:
        """Return all values of some types of JSON Schema."""
        return cls({part: None for name in names for part in PARTS.get(name, (name,))})

    @classmethod
    def of_values(cls, values: Any) -> Self:
        found: dict[str, dict[bytes, Any]] = {}
        for value in values:
            found.setdefault(json_type(value), {})[canonical(value)] = value
        return cls({kind: tuple(own.values()) for kind, own in found.items()})

    @property
    def types(self) -> frozenset[str]:
        return frozenset(self)

    def has(self, value: Any) -> bool:
        """Return True if a value is allowed."""
        listed = self.get(json_type(value), ())
        return listed is None or canonical(value) in map(canonical, listed)

    def intersection(self, other: "Allowed") -> "Allowed":
        """Return what both allow."""
        both = Allowed()
        for kind in [kind for kind in self if kind in other]:
            mine, theirs = self[kind], other[kind]
            if mine is None or theirs is None:
                both[kind] = theirs if mine is None else mine
            else:
                known = set(map(canonical, theirs))
                both[kind] = tuple(value for value in mine if canonical(value) in known)
        return Allowed({kind: values for kind, values in both.items() if values != ()})

    def union(self, other: "Allowed") -> "Allowed":
        """Return what either allows."""
        union = Allowed(self)
        for kind, theirs in other.items():
            mine = self.get(kind, ())
            if mine is None or theirs is None:
                union[kind] = None
            else:
                union[kind] = tuple({canonical(value): value for value in (*mine, *theirs)}.values())
        return union


ANYTHING = Allowed.of_types(TYPES)
NOTHING = Allowed()


class Meanings:
    """What the parts of one schema allow."""

    def __init__(self, root: Any) -> None:
        """root: a schema whose `$defs` its references lead to."""
        self._definitions: dict[str, Any] = root.get("$defs", {}) if isinstance(root, dict) else {}
        # The least that is consistent, so that a cycle of references alone allows nothing.
        self._allowed = dict.fromkeys(self._definitions, NOTHING)
        changed = True
        while changed:
            changed = False
            # Definitions are listed in the order in which references lead to them.
            for name in reversed(self._definitions):
                found = self.of(self._definitions[name])
                changed = changed or found != self._allowed[name]
                self._allowed[name] = found

    def of(self, schema: Any) -> Allowed:
        """Return what a schema allows."""
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        allowed = ANYTHING
        if "type" in schema:
            declared = schema["type"]
            allowed = Allowed.of_types([declared] if isinstance(declared, str) else declared)
        if "const" in schema:
            allowed = allowed.intersection(Allowed.of_values([schema["const"]]))
        if "enum" in schema:
            allowed = allowed.intersection(Allowed.of_values(schema["enum"]))
        if "$ref" in schema:
            allowed = allowed.intersection(self._allowed[schema["$ref"].removeprefix(DEFINITION)])
        for one in schema.get("allOf", ()):
            allowed = allowed.intersection(self.of(one))
        if "anyOf" in schema:
            either = NOTHING
            for one in schema["anyOf"]:
                either = either.union(self.of(one))
            allowed = allowed.intersection(either)
        return allowed

    def definition(self, reference: str) -> Any:
        """Return the schema that a reference leads to."""
        return self._definitions[reference.removeprefix(DEFINITION)]
