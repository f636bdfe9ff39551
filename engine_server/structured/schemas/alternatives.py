"""The alternatives that a schema has for a string or an object, with unions and references multiplied out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_server.structured.schemas.bounds import StringRule
from engine_server.structured.schemas.meaning import Meanings

# More are left out: what is left is valid too.
MAX_ALTERNATIVES = 16

# The bounds that a string keeps, all of them.
StringRules = tuple[StringRule, ...]


def strings(schema: Any, meanings: Meanings) -> list[StringRules]:
    """Return the bounds of the strings that a schema allows: a string keeps all those of one alternative.

    One more than MAX_ALTERNATIVES says that there are more.
    """
    return [tuple(rule for one in parts if (rule := StringRule.of(one)) != StringRule()) for parts in conjunctions(
        schema, "string", meanings, ()
    )]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """Objects that a schema allows: the schemas of the properties that it lists, and the names that it requires."""

    properties: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    # Of other properties, all of which apply.
    others: tuple[Any, ...] = ()

    def schema(self, name: str) -> Any:
        """Return the schema of a property."""
        return self.properties[name] if name in self.properties else joined(list(self.others))


def objects(schema: Any, meanings: Meanings) -> list[ObjectForm]:
    """Return the alternatives for an object. One more than MAX_ALTERNATIVES says that there are more."""
    return [object_form(parts) for parts in conjunctions(schema, "object", meanings, ())]


def object_form(parts: tuple[dict[str, Any], ...]) -> ObjectForm:
    """Return the objects that match several schemas at once."""
    found: dict[str, list[Any]] = {}
    required: dict[str, None] = {}
    for part in parts:
        for name in part.get("properties", {}):
            found.setdefault(name, [])
        required |= dict.fromkeys(part.get("required", ()))
    for name in (*found, *required):
        found[name] = [part_of(part, name) for part in parts]
    schemas = {name: joined(own) for name, own in found.items()}
    return ObjectForm(schemas, frozenset(required), tuple(part_of(part, None) for part in parts))


def part_of(schema: Mapping[str, Any], name: str | None) -> Any:
    """Return what a schema says of a property; None: of one that it doesn't list."""
    if name in (listed := schema.get("properties", {})):
        return listed[name]
    return schema.get("additionalProperties", True) if "patternProperties" not in schema else True


def joined(schemas: list[Any]) -> Any:
    """Return one schema for values that match several."""
    said = [one for one in schemas if one is not True and one != {}]
    return said[0] if len(said) == 1 else {"allOf": said} if said else {}


def conjunctions(
    schema: Any, kind: str, meanings: Meanings, seen: tuple[str, ...]
) -> list[tuple[dict[str, Any], ...]]:
    """Return alternatives for values of a type, each a list of schemas without unions and references to match at once.

    seen: the references that led here, so that cycles end.
    """
    if isinstance(schema, bool):
        return [()] if schema else []
    if kind not in meanings.of(schema):
        return []
    alternatives: list[tuple[dict[str, Any], ...]] = [(schema,)]
    steps = [[one] for one in schema.get("allOf", ())]
    if "anyOf" in schema:
        steps.append(schema["anyOf"])
    for step in steps:
        inner = [parts for one in step for parts in conjunctions(one, kind, meanings, seen)]
        alternatives = product(alternatives, inner)
    if (reference := schema.get("$ref")) is not None:
        if reference in seen:
            return []
        target = conjunctions(meanings.definition(reference), kind, meanings, (*seen, reference))
        alternatives = product(alternatives, target)
    return alternatives


def product(
    first: list[tuple[dict[str, Any], ...]], second: list[tuple[dict[str, Any], ...]]
) -> list[tuple[dict[str, Any], ...]]:
    return [(*one, *other) for one in first for other in second][: MAX_ALTERNATIVES + 1]
