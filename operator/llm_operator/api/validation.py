"""Validation of JSON values against the API's types, with the path of the first violation.

msgspec reports violations only as sentences. Its type descriptions (`msgspec.inspect`) are structured, so they are
walked here, and msgspec converts only what has passed.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import inspect

from llm_operator.api.schema import LIST_KEYS, LIST_TYPE, RULES, SHAPE, SpecError

ROOT = "the manifest"
# Values of these types are shown in full.
SCALARS = (str, int, float, bool)


class UnknownFieldError(SpecError):
    """A field that the API does not have."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path, "there is no such field")
        self.name = name


def check(value: Any, kind: inspect.Type, path: str = "") -> None:
    """Raise SpecError if `value`, which lies at `path`, is not of the type `kind` or breaks one of its rules."""
    match kind:
        case inspect.Metadata():
            extra = kind.extra or {}
            check(value, kind.type, path)
            if SHAPE in extra and value is not None:
                check(value, type_of(extra[SHAPE]), path)
            check_unique(value, kind.extra_json_schema or {}, path)
            for rule in extra.get(RULES, ()):
                rule.check(value, path)
        case inspect.UnionType():
            matching = [arm for arm in kind.types if name_of(arm) == json_type(value)]
            check(value, matching[0], path) if matching else refuse_type(value, kind, path)
        case inspect.AnyType():
            pass
        case _ if name_of(kind) != json_type(value):
            refuse_type(value, kind, path)
        case inspect.StructType():
            check_struct(value, kind, path)
        case inspect.VarTupleType():
            check_length(value, "array", kind.min_length, kind.max_length, path)
            for index, item in enumerate(value):
                check(item, kind.item_type, f"{path}[{index}]")
        case inspect.DictType():
            for name in value:
                check(name, kind.key_type, f"{path}.{name}")
                check(value[name], kind.value_type, f"{path}.{name}")
        case inspect.LiteralType() if value not in kind.values:
            allowed = ", ".join(map(str, kind.values))
            raise SpecError(path, f"invalid enum value {value!r}; allowed: {allowed}")
        case inspect.IntType():
            check_bounds(value, kind, path)
        case inspect.StrType():
            check_length(value, "str", kind.min_length, kind.max_length, path)
            if kind.pattern is not None and re.search(kind.pattern, str(value)) is None:
                raise SpecError(path, f"expected `str` matching regex {kind.pattern!r}; it is {value!r}")


@cache
def type_of(shape: Any) -> inspect.Type:
    """Return the description of a type, which takes longer to make than most checks by it."""
    return inspect.type_info(shape)


def check_struct(value: Any, kind: inspect.StructType, path: str) -> None:
    known = {field.encode_name: field for field in kind.fields}
    for name in value:
        if kind.forbid_unknown_fields and name not in known:
            raise UnknownFieldError(below(path, name), str(name))
    for name, field in known.items():
        if name in value:
            check(value[name], field.type, below(path, name))
        elif field.required:
            raise SpecError(below(path, name), "this field is required")


def check_unique(value: Any, schema: Mapping[str, Any], path: str) -> None:
    """Check the uniqueness that the list type of a schema promises: of items, or of their keys."""
    match schema.get(LIST_TYPE):
        case "set":
            identities = list(value)
        case "map":
            identities = [item[key] for item in value for key in schema[LIST_KEYS]]
        case _:
            return
    for identity in identities:
        if identities.count(identity) > 1:
            raise SpecError(path, f"{identity!r} is there more than once")


def check_bounds(value: Any, kind: inspect.IntType, path: str) -> None:
    if kind.ge is not None and value < kind.ge:
        raise SpecError(path, f"expected `int` >= {kind.ge}; it is {value}")
    if kind.le is not None and value > kind.le:
        raise SpecError(path, f"expected `int` <= {kind.le}; it is {value}")


def check_length(value: Any, name: str, least: int | None, most: int | None, path: str) -> None:
    if least is not None and len(value) < least:
        raise SpecError(path, f"expected `{name}` of length >= {least}; it is {len(value)} long")
    if most is not None and len(value) > most:
        raise SpecError(path, f"expected `{name}` of length <= {most}; it is {len(value)} long")


def refuse_type(value: object, kind: inspect.Type, path: str) -> None:
    found = f"; it is {value!r}" if isinstance(value, SCALARS) else ""
    raise SpecError(path or ROOT, f"expected `{name_of(kind)}`, got `{json_type(value)}`{found}")


def name_of(kind: inspect.Type) -> str:
    """Return the JSON type that values of `kind` have. Raises TypeError for a kind that the API does not use."""
    match kind:
        case inspect.Metadata():
            return name_of(kind.type)
        case inspect.UnionType():
            return " | ".join(name_of(arm) for arm in kind.types if not isinstance(arm, inspect.NoneType))
        case inspect.StructType() | inspect.DictType():
            return "object"
        case inspect.VarTupleType():
            return "array"
        case inspect.StrType() | inspect.LiteralType():
            return "str"
        case inspect.IntType():
            return "int"
        case inspect.BoolType():
            return "bool"
        case inspect.NoneType():
            return "null"
    raise TypeError(f"the API has no fields of type {kind}")


def json_type(value: object) -> str:
    """Return the name of a value's JSON type; of its Python type where YAML has more types than JSON."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "array"
    return type(value).__name__


def suggestion(name: str, paths: Iterable[str]) -> str:
    """Return a hint at the path whose last part is closest to `name`, or an empty string."""
    by_name = {path.rsplit(".", 1)[-1]: path for path in sorted(paths, reverse=True)}
    close = difflib.get_close_matches(name, by_name, 1)
    return f"; did you mean {by_name[close[0]]}?" if close else ""


def below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
