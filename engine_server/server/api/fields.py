"""Request fields with rules that pydantic's types don't express."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from engine_server.contract.base import bounds
from engine_server.contract.base.bounds import Bound
from engine_server.contract.base.quoting import quote
from engine_server.server.api.cut_body import CutBody
from engine_server.server.api.pictures import PictureReader
from engine_server.shared import request_ids

# OpenAI's limit.
MAX_CHOICES = 128
UNSUPPORTED = "unsupported"
NO_PROMPT = PydanticCustomError(
    "prompt", "takes a string, a list of strings, a list of token ids or a list of lists of token ids"
)


@dataclass(frozen=True)
class Unsupported(AfterValidator):
    """The validator of a field that `only` declares."""


@dataclass(frozen=True)
class IgnoredMark(AfterValidator):
    """The validator of a field that is known and has no effect."""


def drop(_: object) -> None:
    """Forget a value, which would be kept until the request ends."""


# A hint that can't change an answer, of any type.
Ignored = Annotated[Any, IgnoredMark(drop)]

T = TypeVar("T")
# A list that is refused by its first wrong item: pydantic makes an error for each.
Items = Annotated[list[T], Field(fail_fast=True)]


def only(*neutral: object) -> Unsupported:
    """Return a validator for a known field that isn't supported: it accepts null and the values that ask for nothing.

    Declaring such a field means that a client which relies on it gets an error and not silently another answer.
    """

    def check(value: object) -> object:
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            return value
        allowed = f"; only {neutral[0]!r} is" if neutral else ""
        raise PydanticCustomError(UNSUPPORTED, "is not supported{allowed}", {"allowed": allowed})

    return Unsupported(check)


def request_id(value: str) -> str:
    """Check a client's id of its request, which becomes a part of the answer's id."""
    if not (value.isascii() and request_ids.is_valid(value.encode())):
        raise PydanticCustomError("request_id", "takes 1 to 128 printable ASCII characters without spaces")
    return value


def stop_strings(value: object) -> list[str]:
    """Return `stop` as a list; it may be null, one string or several."""
    if value is None:
        return []
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise PydanticCustomError("stop", "takes a string or a list of strings")
    check_bound(bounds.STOP_STRINGS, len(strings))
    if not all(isinstance(text, str) for text in strings):
        raise PydanticCustomError("stop", "takes a string or a list of strings")
    for text in strings:
        check_bound(bounds.STOP_STRING_CHARACTERS, len(text))
    return strings


def token_biases(value: object) -> dict[int, float] | None:
    """Return `logit_bias` with integers as keys; it may be null."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise PydanticCustomError("logit_bias", "takes an object of numbers, with token ids as keys")
    check_bound(bounds.BIASED_TOKENS, len(value))
    biases = {}
    for key, bias in value.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            message = "takes numbers; the one of {key} is none"
            raise PydanticCustomError("logit_bias", message, {"key": quote(key)})
        try:
            biases[int(key)] = float(bias)
        except (ValueError, OverflowError):
            message = "takes token ids as keys, which {key} is not, and finite numbers"
            raise PydanticCustomError("logit_bias", message, {"key": quote(key)}) from None
    return biases


def prompt_list(value: object) -> list[str] | list[list[int]]:
    """Return `prompt`, in any of its four forms, as a list of prompts."""
    if value is None:
        raise PydanticCustomError("missing", "is missing")
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if not value:
            no_tokens: list[list[int]] = [[]]
            return no_tokens
        if set(map(type, value)) <= {int, float}:
            return [token_ids(value)]
        check_bound(bounds.PROMPTS, len(value))
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) for item in value):
            return [token_ids(item) for item in value]
    raise NO_PROMPT


def token_ids(value: list[Any]) -> list[int]:
    """Return a list of integers, which may be written like 16.0."""
    types = set(map(type, value))
    if types <= {int}:
        return value
    if types <= {int, float} and all(float(item).is_integer() for item in value):
        return [int(item) for item in value]
    raise NO_PROMPT


def first_wrong_text(value: object) -> object:
    """Refuse an object for its first value that is no text; for each pydantic makes an error."""
    if isinstance(value, dict):
        for name, text in value.items():
            if not isinstance(text, str):
                raise PydanticCustomError(
                    "texts", "takes strings as values; that of {name} is none", {"name": quote(name)}
                )
    return value


# An object whose values are texts.
NamedTexts = Annotated[dict[str, str], BeforeValidator(first_wrong_text)]


def whole_numbers(value: object) -> object:
    """Return a list in which whole numbers like 16.0 are integers: of many, none gets an error of its own."""
    if not isinstance(value, list) or float not in set(map(type, value)):
        return value
    return [int(item) if isinstance(item, float) and item.is_integer() else item for item in value]


# Each of them an integer, whole numbers like 16.0 included.
TokenIds = Annotated[Items[int], BeforeValidator(whole_numbers)]


class NestedJson:
    """Counts the values in a body's strings of JSON, which the bounds of the body itself leave out."""

    def __init__(self) -> None:
        self._counted = 0
        # Those whose own strings are counted too, until the sum is beyond the bound.
        self._pending: list[str] = []
        self._pending_values = 0

    def add(self, text: str) -> None:
        """Count the values of one more string. Raises a validation error if there are too many in all."""
        self._pending.append(text)
        self._pending_values += text.count(",") + text.count("[") + text.count("{")
        if self._counted + self._pending_values > bounds.NESTED_VALUES.limit:
            for pending in self._pending:
                kept = bounds.without_strings(pending.encode(errors="replace"))
                self._counted += kept.count(b",") + bounds.num_brackets(kept)
            self._pending, self._pending_values = [], 0
            check_bound(bounds.NESTED_VALUES, self._counted)


class BodyContext(NestedJson):
    """What the validators of one body know beside their values."""

    def __init__(self, cut_body: CutBody | None = None) -> None:
        """cut_body: has the files of pictures, for a model that takes some."""
        super().__init__()
        self.cut_body = cut_body


def picture_readers(
    info: ValidationInfo, readers: Mapping[str, PictureReader]
) -> Mapping[str, PictureReader]:
    """Return the readers of pictures by the type of a part, if the model that a body is for takes some."""
    cut_body = info.context.cut_body if isinstance(info.context, BodyContext) else None
    return {kind: partial(cut_body.read, reader) for kind, reader in readers.items()} if cut_body else {}


def call_arguments(value: object, info: ValidationInfo) -> dict[str, Any] | str:
    """Return the arguments of an earlier call, which are JSON in a string, as an object.

    Arguments that were cut, and others that are no object, stay text: an agent can't take back what a model wrote.
    """
    if not isinstance(value, str):
        raise PydanticCustomError("arguments", "takes a string")
    if not value.strip():
        return {}
    if isinstance(info.context, NestedJson):
        info.context.add(value)
    try:
        arguments = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):  # of half a surrogate pair too, which templates can't write
        return value
    except RecursionError:
        raise PydanticCustomError("arguments", "is nested too deeply") from None
    check_depth(arguments)
    return arguments if isinstance(arguments, dict) else value


def check_bound(bound: Bound, amount: int) -> None:
    """Raise a validation error for an amount that is too large."""
    if error := bound.exceeded(amount):
        raise PydanticCustomError("too_many", "{error}", {"error": error})


def check_depth(value: object) -> None:
    """Raise a validation error for JSON that is nested deeper than its users can recurse."""
    level, depth = [value], 0
    while level := [item for outer in level for item in containers(outer)]:
        depth += 1
        check_bound(bounds.SCHEMA_DEPTH, depth)


def containers(value: object) -> list[object]:
    """Return the objects and arrays within a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inner if isinstance(item, dict | list)]
