"""Schemas as a grammar can enforce them, with the names of what it can't."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from engine_server.structured.schemas.bounds import Bound, StringRule, too_large
from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.walk import RelaxedPart, Walk

LENGTHS = ("minLength", "maxLength")


class Relaxed(NamedTuple):
    """A schema that a grammar can enforce. All references are to its own `$defs`."""

    schema: Any
    parts: tuple[RelaxedPart, ...] = ()
    # The bounded strings, with their paths.
    strings: tuple[tuple[StringRule, str], ...] = ()
    # Number of characters of property names and listed values.
    literals: int = 0


def relax(schema: Any, path: str, strict: bool = False) -> Relaxed:
    """Return a schema as a grammar of its own can enforce it. Raises SchemaError, with the path.

    strict: refuse what would be relaxed.
    """
    relaxed = fit([relax_keywords(schema, path)])[0]
    if strict and relaxed.parts:
        raise refusal(relaxed.parts[0])
    return relaxed


def relax_keywords(schema: Any, path: str) -> Relaxed:
    """Return a schema without what no grammar can enforce; bounds of any size remain. Raises SchemaError."""
    walk = Walk(schema, path)
    relaxed = walk.run()
    return Relaxed(relaxed, tuple(walk.parts), tuple(walk.strings), walk.literals)


def fit(schemas: Sequence[Relaxed]) -> list[Relaxed]:
    """Return the schemas of one grammar without bounds that are too large for all together, each with its parts."""
    rules = [rule for one in schemas for rule, _ in one.strings]
    dropped = too_large(rules, sum(one.literals for one in schemas))
    return [without_bounds(one, dropped) if dropped else one for one in schemas]


def refusal(part: RelaxedPart) -> SchemaError:
    """Return the error of a part that must not be relaxed."""
    keyword = part.path.rpartition(".")[2]
    detail = "" if part.reason == keyword else f" ({part.reason})"
    return SchemaError(part.path, f"{keyword}{detail} can't be enforced")


def without_bounds(relaxed: Relaxed, dropped: set[Bound]) -> Relaxed:
    """Return a schema without some bounds, and with their names."""
    parts = dict.fromkeys(relaxed.parts)
    for rule, path in relaxed.strings:
        if Bound(rule, "length") in dropped:
            keywords = ["minLength"] * bool(rule.min_length) + ["maxLength"] * (rule.max_length is not None)
            parts |= dict.fromkeys(RelaxedPart(f"{path}.{key}", "bound too large") for key in keywords)
        if Bound(rule, "pattern") in dropped:
            parts[RelaxedPart(f"{path}.pattern", "count too large")] = None
    if len(parts) == len(relaxed.parts):
        return relaxed
    return relaxed._replace(schema=rewrite(relaxed.schema, dropped), parts=tuple(parts))


def rewrite(schema: Any, dropped: set[Bound]) -> Any:
    """Return a schema without some bounds."""
    if isinstance(schema, list):
        return [rewrite(one, dropped) for one in schema]
    if not isinstance(schema, dict):
        return schema
    rule, left = StringRule.of(schema), {}
    for key, value in schema.items():
        if (key in LENGTHS and Bound(rule, "length") in dropped) or (
            key == "pattern" and Bound(rule, "pattern") in dropped
        ):
            continue
        if key in ("properties", "patternProperties", "$defs"):
            left[key] = {name: rewrite(one, dropped) for name, one in value.items()}
        else:
            left[key] = value if key in ("enum", "const") else rewrite(value, dropped)
    return left
