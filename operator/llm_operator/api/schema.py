"""How the API's types are said: msgspec parses by them, and the CRD is generated from them."""

import difflib
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Object = dict[str, Any]  # of any shape


def about(words: str) -> Meta:
    """A field's description, for `kubectl explain`."""
    return Meta(description=words)


class SpecError(ValueError):
    """What is wrong with a manifest, in a sentence that names the field."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class Rule(NamedTuple):
    """One condition in two languages: CEL for the API server, and the same in Python."""

    cel: str
    message: str
    holds: Callable[[Any], bool]

    def check(self, value: object, path: str) -> None:
        if not self.holds(value):
            raise SpecError(path, self.message + (f"; it is {value!r}" if isinstance(value, str) else ""))


def ruled(*rules: Rule) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": rule.cel, "message": rule.message} for rule in rules]}


class Section(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """A part of the API: snake_case here, camelCase in manifests."""

    @classmethod
    def parse(cls, manifest: object) -> Self:
        """SpecError names the field, what is wrong and what is allowed. Null is absent, as to the API server."""
        given = without_nulls(manifest)
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise explained(error, cls, given) from error


def without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        # in a podTemplate null means to remove
        return {
            key: item if key == "podTemplate" else without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def explained(error: msgspec.ValidationError, cls: type[Section], given: object) -> SpecError:
    """Adds to msgspec's words what was there and what may be."""
    words, _, tail = str(error).partition(" - at `$.")
    path = tail.rstrip("`")
    if isinstance(cause := error.__cause__, SpecError):
        return SpecError(f"{path}.{cause.path}".strip("."), cause.problem)
    fields = dict(fields_of(cls))
    if unknown := re.search("unknown field `(.*)`", words):
        return SpecError(f"{path}.{unknown[1]}".strip("."), no_such_field(unknown[1], fields))
    problem = words[0].lower() + words[1:]
    if words.startswith("Invalid enum value") and (allowed := typing.get_args(fields.get(path))):
        return SpecError(path, f"{problem}; allowed: {', '.join(allowed)}")
    found = at(given, path)
    is_short = not isinstance(found, Mapping | list)
    return SpecError(path or "the manifest", f"{problem}; it is {found!r}" if is_short else problem)


def no_such_field(name: str, paths: Iterable[str]) -> str:
    by_name = {path.rsplit(".", 1)[-1]: path for path in sorted(paths, reverse=True)}
    close = difflib.get_close_matches(name, by_name, 1)
    return "there is no such field" + (f"; did you mean {by_name[close[0]]}?" if close else "")


def fields_of(cls: type[Section], path: str = "") -> Iterable[tuple[str, Any]]:
    """Every field below, as manifests spell its path, with its type."""
    for field in msgspec.structs.fields(cls):
        kind = without_none(field.type)
        spelling = f"{path}.{field.encode_name}".removeprefix(".")
        yield spelling, kind
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from fields_of(kind, spelling)


def without_none(kind: Any) -> Any:
    """X of Annotated[X | None, ...]."""
    if typing.get_origin(kind) is Annotated:
        return without_none(typing.get_args(kind)[0])
    arms = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    return without_none(arms[0]) if type(None) in typing.get_args(kind) and len(arms) == 1 else kind


def at(value: Any, path: str) -> Any:
    """What lies at a path such as engine.args[0]."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return value
