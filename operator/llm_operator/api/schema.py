"""The vocabulary of the API's types: parsing, validation and the CRD all read the same declarations."""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
# A JSON object of any shape.
Object = dict[str, Any]

LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
RULES = "rules"


class SpecError(ValueError):
    """A violation of the API: the path of the field, and the problem with it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class Section(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A part of the API: snake_case in Python, camelCase in manifests."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in two languages: CEL for the API server, and Python over the same JSON value."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    # The path of the field to report, below the value that the rule is attached to.
    path: str = ""
    # Further keys of the rule in the CRD.
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, value: object, path: str) -> None:
        """Raise SpecError if the rule does not hold for `value`, which lies at `path`."""
        if not self.holds(value):
            found = f"; it is {value!r}" if isinstance(value, str) else ""
            raise SpecError(".".join(filter(None, (path, self.path))), self.message + found)

    def as_schema(self) -> dict[str, Any]:
        """Return an item of x-kubernetes-validations."""
        return {"rule": self.cel, "message": self.message, **self.options}


def about(description: str) -> Meta:
    """Describe a field, for `kubectl explain`."""
    return Meta(description=description)


def ruled(*rules: Rule) -> Meta:
    """Attach rules to a field: to its schema in the CRD, and for `validation`."""
    return Meta(extra_json_schema=validations(rules), extra={RULES: rules})


def validations(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return the schema extension that makes the API server check `rules`."""
    return {"x-kubernetes-validations": [rule.as_schema() for rule in rules]}


def fields_of(cls: type[Section], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the path of every field below `cls`, as manifests spell it, with the field's type."""
    for each in msgspec.structs.fields(cls):
        kind = without_none(each.type)
        spelling = f"{path}.{each.encode_name}".removeprefix(".")
        yield spelling, kind
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from fields_of(kind, spelling)


def without_none(kind: Any) -> Any:
    """Return X for Annotated[X | None, ...]."""
    if typing.get_origin(kind) is Annotated:
        return without_none(typing.get_args(kind)[0])
    arms = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    return without_none(arms[0]) if type(None) in typing.get_args(kind) and len(arms) == 1 else kind
