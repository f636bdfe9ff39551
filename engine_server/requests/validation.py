"""Checks of single values from callers: each returns the value in its plain type or raises InvalidRequestError.

A value that passes can be encoded as msgpack and decoded again: subclasses become the built-in type, integers have
at most 64 bits, and text is valid UTF-8.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, TypeVar

from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError

MAX_INT32 = (1 << 31) - 1
MIN_INT64 = -(1 << 63)
MAX_INT64 = (1 << 63) - 1
MAX_UINT64 = (1 << 64) - 1
# Maximum nesting depth of containers.
MAX_DEPTH = 16

T = TypeVar("T")


def refuse_value(name: str, value: object, expected: str) -> NoReturn:
    """Raise InvalidRequestError that names the parameter, its value and what it takes."""
    raise InvalidRequestError(f"{name} is {quote(value)}; expected {expected}", name)


def refuse_type(name: str, value: object, expected: str) -> NoReturn:
    """Raise InvalidRequestError that names the parameter, its value, its type and the expected type."""
    refuse_value(name, value, f"`{expected}`, got `{type(value).__name__}`")


def integer(name: str, value: object, least: int = MIN_INT64, most: int = MAX_INT64) -> int:
    """Check an integer from `least` to `most`; a bool is refused."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int):
            refuse_type(name, value, "int")
        value = int.__int__(value)
    if not MIN_INT64 <= value <= MAX_UINT64:
        refuse_value(name, value, "`int` of 64 bits")
    if value < least:
        refuse_value(name, value, f"`int` >= {least}")
    if value > most:
        refuse_value(name, value, f"`int` <= {most}")
    return value


def number(
    name: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    bound: Literal["inclusive", "exclusive"] = "inclusive",
) -> float:
    """Check a finite number from `least` (excluded if `bound` is exclusive) to `most`."""
    if isinstance(value, bool) or not isinstance(value, float | int):
        refuse_type(name, value, "float")
    try:
        converted = float.__float__(value) if isinstance(value, float) else float(int.__int__(value))
    except OverflowError:
        refuse_value(name, value, "a `float` of 64 bits")
    if not math.isfinite(converted):
        refuse_value(name, value, "a finite `float`")
    if bound == "exclusive" and converted <= least:
        refuse_value(name, value, f"`float` > {least:g}")
    if converted < least:
        refuse_value(name, value, f"`float` >= {least:g}")
    if converted > most:
        refuse_value(name, value, f"`float` <= {most:g}")
    return converted


def flag(name: str, value: object) -> bool:
    """Check a bool."""
    if type(value) is not bool:
        refuse_type(name, value, "bool")
    return value


def text(name: str, value: object) -> str:
    """Check a string that is valid UTF-8; it may be empty."""
    if not isinstance(value, str):
        refuse_type(name, value, "str")
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            refuse_value(name, value, "text without lone surrogates")
    return value


def nonempty_text(name: str, value: object) -> str:
    """Check a string of at least one character."""
    value = text(name, value)
    if not value:
        refuse_value(name, value, "`str` of length >= 1")
    return value


def token(name: str, value: object) -> int:
    """Check a token id; the vocabulary's end is checked at admission."""
    return integer(name, value, 0, MAX_INT32)


def tokens(name: str, values: object) -> list[int]:
    """Check a list, tuple or set of token ids, in C if all are valid."""
    if isinstance(values, list | tuple | set | frozenset):
        ids = list(values)
        if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MAX_INT32):
            return ids
    return items(name, values, token)


def items(name: str, values: object, check: Callable[[str, object], T]) -> list[T]:
    """Check a list, tuple or set, and each item by `check`."""
    if not isinstance(values, list | tuple | set | frozenset):
        refuse_type(name, values, "list")
    return [check(name, value) for value in values]


def plain_data(name: str, value: object, depth: int = 0) -> Any:
    """Check None, a bool, number or string, or lists and mappings of those with strings as keys."""
    if depth > MAX_DEPTH:
        refuse_value(name, value, f"at most {MAX_DEPTH} levels of containers")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return integer(name, value, MIN_INT64, MAX_UINT64)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, list | tuple):
        return [plain_data(name, item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {text(name, key): plain_data(name, item, depth + 1) for key, item in value.items()}
    refuse_value(name, value, "None, a bool, a number, text, or lists and mappings of those")
