"""The vocabulary of the API's types: parsing, validation and the CRD all read the same declarations."""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from llm_operator.api.structural import structural

Count = Annotated[int, Meta(ge=0, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Seconds = Annotated[int, Meta(ge=1, le=86400, extra_json_schema={"format": "int32"})]
# Of replicas, from 0 % and from 1 %.
Percent = Annotated[str, Meta(pattern=r"^(100|[1-9]?[0-9])%$")]
PositivePercent = Annotated[str, Meta(pattern=r"^(100|[1-9][0-9]?)%$")]
# The name of a Kubernetes object.
Name = Annotated[str, Meta(min_length=1, max_length=253)]
# A JSON object of any shape.
Object = dict[str, Any]

LIST_TYPE = "x-kubernetes-list-type"
INT_OR_STRING = {"x-kubernetes-int-or-string": True}
LIST_KEYS = "x-kubernetes-list-map-keys"
RULES = "rules"
SHAPE = "shape"
# Marks a field that pods do not depend on: a change of it replaces no pod.
NOT_IN_PODS = Meta(extra={"in pods": False})


class SpecError(ValueError):
    """A violation of the API: the path of the field, and the problem with it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class Open(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False, omit_defaults=True
):
    """An object of Kubernetes, of which we describe some fields. The others are kept; null removes a field."""


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


def shaped(shape: type[msgspec.Struct]) -> Meta:
    """Describe a JSON object by a type, without converting it: so unknown fields and nulls are kept."""
    schema = structural(shape)
    schema.pop("description", None)
    return Meta(extra_json_schema=schema, extra={SHAPE: shape})


def ruled(*rules: Rule) -> Meta:
    """Attach rules to a field: to its schema in the CRD, and for `validation`."""
    return Meta(extra_json_schema=validations(rules), extra={RULES: rules})


def validations(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return the schema extension that makes the API server check `rules`."""
    return {"x-kubernetes-validations": [rule.as_schema() for rule in rules]}


def fields_of(cls: type[msgspec.Struct], path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the path of every field below `cls`, as manifests spell it, with the field's type."""
    for each in msgspec.structs.fields(cls):
        kind = shape_of(each.type) or without_none(each.type)
        spelling = f"{path}.{each.encode_name}".removeprefix(".")
        yield spelling, kind
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from fields_of(kind, spelling)


def shape_of(kind: Any) -> Any:
    """Return the type that describes a field of the type `kind`, or None."""
    notes = kind.__metadata__ if typing.get_origin(kind) is Annotated else ()
    return next((note.extra[SHAPE] for note in notes if note.extra and SHAPE in note.extra), None)


def without_none(kind: Any) -> Any:
    """Return X for Annotated[X | None, ...]."""
    if typing.get_origin(kind) is Annotated:
        return without_none(typing.get_args(kind)[0])
    arms = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    return without_none(arms[0]) if type(None) in typing.get_args(kind) and len(arms) == 1 else kind
