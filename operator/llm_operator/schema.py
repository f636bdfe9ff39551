"""A typed field's vocabulary: what it accepts, read by the parser here and by the CRD's generator."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, TypeVar

Quantity = NewType("Quantity", str)
CPU_PATTERN = r"^[0-9]+(\.[0-9]+)?m?$"
MEMORY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
INT32 = 2**31 - 1

T = TypeVar("T")


class SpecError(ValueError):
    """What is wrong with a manifest, in a sentence that names the field."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition in two languages: CEL for the API server, and the same in Python."""

    cel: str
    message: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a field accepts beyond its type. `items` is what each item of a list accepts."""

    about: str = ""
    minimum: int | None = None
    maximum: int | None = None
    pattern: str | None = None
    choices: tuple[str, ...] = ()
    min_length: int | None = None
    max_length: int | None = None
    max_items: int | None = None
    format: str | None = None
    list_type: str | None = None  # "set", or "map" keyed by `list_key`, as the API server understands them
    list_key: str = "name"
    items: "Accepts | None" = None
    rules: tuple[Rule, ...] = ()
    persisted_default: bool = False  # the schema carries the default, and etcd keeps it


def accepts(about: str, *, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """A dataclass field with its limits."""
    return field(default=default, metadata={"accepts": Accepts(about, **limits)})


@dataclass(frozen=True, slots=True)
class Attribute:
    """A dataclass field as manifests spell it."""

    name: str
    spelling: str
    kind: Any  # its type, without `| None`
    required: bool
    default: Any
    accepts: Accepts


def attributes(cls: type) -> list[Attribute]:
    hints = typing.get_type_hints(cls)
    return [
        Attribute(
            name=f.name,
            spelling=camel(f.name),
            kind=without_none(hints[f.name]),
            required=f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
            default=f.default,
            accepts=f.metadata.get("accepts", Accepts()),
        )
        for f in dataclasses.fields(cls)
    ]


def object_rules(cls: type) -> tuple[Rule, ...]:
    """Rules over several fields, which a dataclass keeps in RULES."""
    return getattr(cls, "RULES", ())


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (kind,) = (arm for arm in typing.get_args(kind) if arm is not type(None))
    return kind


def is_free_form(kind: Any) -> bool:
    return typing.get_origin(kind) is Mapping


def item_kind(kind: Any) -> Any:
    """X of tuple[X, ...], or None for what is no list."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


# --- parsing ------------------------------------------------------------------------------------------


def parse_object(cls: type[T], value: object, path: str) -> T:
    """A dataclass from a manifest's mapping; null is absent, as it is to the API server."""
    given = {key: item for key, item in mapping(value, path).items() if item is not None}
    known = {attribute.spelling: attribute for attribute in attributes(cls)}
    for key in given:
        if key not in known:
            raise SpecError(f"{path}.{key}", unknown_field(str(key), list(known)))
    arguments = {}
    for spelling, attribute in known.items():
        if spelling in given:
            arguments[attribute.name] = parse_value(
                attribute.kind, attribute.accepts, given[spelling], f"{path}.{spelling}"
            )
        elif attribute.required:
            raise SpecError(f"{path}.{spelling}", "is required")
    parsed = cls(**arguments)
    for rule in object_rules(cls):
        if not rule.holds(parsed):
            raise SpecError(path, rule.message)
    return parsed


def parse_value(kind: Any, limits: Accepts, value: object, path: str) -> Any:
    parsed: Any
    inner = item_kind(kind)
    if inner is not None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SpecError(path, f"is {described(value)}; a list is wanted")
        parsed = tuple(
            parse_value(inner, limits.items or Accepts(), item, f"{path}[{index}]")
            for index, item in enumerate(value)
        )
        check_list(limits, parsed, path)
    elif dataclasses.is_dataclass(kind):
        parsed = parse_object(typing.cast(type, kind), value, path)
    elif is_free_form(kind):
        parsed = mapping(value, path)
    elif kind is Quantity:
        parsed = quantity(limits, value, path)
    elif kind is int:
        parsed = integer(limits, value, path)
    else:
        parsed = text(limits, value, path)
    for rule in limits.rules:
        if not rule.holds(parsed):
            raise SpecError(path, f"{rule.message}; it is {parsed!r}")
    return parsed


def mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(path, f"is {described(value)}; an object is wanted")
    return value


def integer(limits: Accepts, value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(path, f"is {described(value)}; an integer is wanted")
    low, high = limits.minimum, INT32 if limits.maximum is None else limits.maximum
    if low is not None and value < low:
        raise SpecError(path, f"{value} is less than {low}, the least allowed")
    if value > high:
        raise SpecError(path, f"{value} is more than {high}, the most allowed")
    return value


def quantity(limits: Accepts, value: object, path: str) -> Quantity:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SpecError(path, f"is {described(value)}; a string or an integer is wanted")
    return Quantity(text(limits, str(value), path))


def text(limits: Accepts, value: object, path: str) -> str:
    if not isinstance(value, str):
        raise SpecError(path, f"is {described(value)}; a string is wanted")
    if limits.choices and value not in limits.choices:
        raise SpecError(path, f"{value!r} is not one of {', '.join(limits.choices)}")
    if limits.min_length is not None and len(value) < limits.min_length:
        raise SpecError(path, "must not be empty" if not value else f"is shorter than {limits.min_length}")
    if limits.max_length is not None and len(value) > limits.max_length:
        raise SpecError(path, f"has {len(value)} characters; {limits.max_length} is the most allowed")
    if limits.pattern and not re.search(limits.pattern, value):
        raise SpecError(path, f"{value!r} does not match {limits.pattern}")
    return value


def check_list(limits: Accepts, items: tuple[Any, ...], path: str) -> None:
    if limits.max_items is not None and len(items) > limits.max_items:
        raise SpecError(path, f"has {len(items)} items; {limits.max_items} is the most allowed")
    if limits.list_type is not None:
        keys = [getattr(item, limits.list_key) if limits.list_type == "map" else item for item in items]
        for key in keys:
            if keys.count(key) > 1:
                raise SpecError(path, f"{key!r} is there more than once")


def unknown_field(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there is no such field{hint} (allowed: {', '.join(known)})"


def described(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}
    return f"{names.get(type(value), 'an object')} ({value!r})" if type(value) in names else "an object"
