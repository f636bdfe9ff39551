"""`oneOf`: whether its branches exclude each other, so that a value of any of them is a value of exactly one."""

from collections.abc import Sequence
from typing import Any

from engine_server.structured.schemas.errors import SchemaError
from engine_server.structured.schemas.references import References
from engine_server.structured.schemas.values import canonical, json_type

# References that are followed to find what a branch is.
MAX_REFERENCES = 16


def exclusive(branches: Sequence[Any], declared: set[str] | None, references: References) -> bool:
    """Return True if the branches differ by type, by their values, or by the values of a required property.

    declared: the types of branches that say nothing of theirs, if the schema around them does.
    """
    resolved = [resolve(branch, references) for branch in branches]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for branch in resolved:
        types = branch_types(branch) or declared
        if types is None:
            return False
        for one in types:
            by_type.setdefault(one, []).append(branch)
    if "number" in by_type and "integer" in by_type:
        by_type["number"] += by_type.pop("integer")
    return all(
        len(same) == 1
        or disjoint([values(one) for one in same])
        or (kind == "object" and discriminated(same))
        for kind, same in by_type.items()
    )


def resolve(branch: Any, references: References) -> dict[str, Any]:
    """Return the schema that a branch refers to, with an empty one where that is unclear."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(branch, dict) or "$ref" not in branch:
            break
        if not isinstance(branch["$ref"], str):
            return {}
        try:
            branch = references.find(branch["$ref"], "").schema
        except SchemaError:
            return {}
    return branch if isinstance(branch, dict) else {}


def branch_types(branch: dict[str, Any]) -> set[str] | None:
    """Return the types that a schema declares or lists; None if it does neither."""
    declared = branch.get("type")
    if isinstance(declared, str):
        return {declared, "null"} if branch.get("nullable") is True else {declared}
    if isinstance(declared, list) and declared and all(isinstance(one, str) for one in declared):
        return set(declared)
    if "const" in branch:
        return {json_type(branch["const"])}
    listed = branch.get("enum")
    return {json_type(one) for one in listed} if isinstance(listed, list) else None


def values(branch: dict[str, Any]) -> list[bytes] | None:
    """Return the values that a branch lists, as JSON; None if it lists none."""
    if "const" in branch:
        return [canonical(branch["const"])]
    listed = branch.get("enum")
    return [canonical(one) for one in listed] if isinstance(listed, list) else None


def disjoint(listed: Sequence[list[bytes] | None]) -> bool:
    """Return True if no value is in two of the lists."""
    if any(one is None for one in listed):
        return False
    every = [value for one in listed for value in set(one or ())]
    return len(every) == len(set(every))


def discriminated(branches: Sequence[dict[str, Any]]) -> bool:
    """Return True if a property that each branch requires has other values in each."""
    names: list[str] = []
    for number, branch in enumerate(branches):
        properties, required = branch.get("properties"), branch.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return False
        own = [name for name in required if isinstance(name, str) and isinstance(properties.get(name), dict)]
        names = own if number == 0 else [name for name in names if name in set(own)]
    return any(disjoint([values(branch["properties"][name]) for branch in branches]) for name in names)
