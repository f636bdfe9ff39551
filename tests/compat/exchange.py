"""Bytes that one program writes and another one reads, which may be of another release."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """One kind of bytes, with today's code of both sides. Both are deterministic."""

    # Of the file with its recording.
    name: str
    # WRITER -> READER, for people.
    between: str
    # Returns what today's code writes, by case.
    write: Callable[[], dict[str, bytes]]
    # Returns what today's code makes of such bytes, as JSON has it.
    read: Callable[[bytes], Any]
    # The function of `contract_decoders` that decodes them with the contract alone. None: the contract has no decoder
    # for them, so that all that a release wrote must still be written.
    decoder: str | None = None


def record(exchange: Exchange) -> dict[str, Any]:
    """Return the recording of what today's code writes, and of what it makes of that."""
    cases = {
        case: {"content": content.decode().splitlines(keepends=True), "read": plain(exchange.read(content))}
        for case, content in exchange.write().items()
    }
    return {"between": exchange.between, "cases": cases}


def content_of(case: dict[str, Any]) -> bytes:
    """Return the bytes of a recorded case, which are divided into lines."""
    return "".join(case["content"]).encode()


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def missing(recorded: Any, today: Any, place: str = "") -> Iterator[str]:
    """Yield what `recorded` has and `today` lacks. Objects may have further fields today; lists are equal in length."""
    if isinstance(recorded, dict) and isinstance(today, dict):
        for key, value in recorded.items():
            if key in today:
                yield from missing(value, today[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is gone"
    elif isinstance(recorded, list) and isinstance(today, list) and len(recorded) == len(today):
        for index, pair in enumerate(zip(recorded, today, strict=True)):
            yield from missing(*pair, f"{place}[{index}]")
    elif recorded != today:
        yield f"{place} was {recorded!r} and is {today!r}"


def missing_text(recorded: bytes, today: bytes) -> Iterator[str]:
    """Yield what a reader of `recorded` finds no more in `today`, which may be longer: fields of JSON, or a text."""
    try:
        pair = json.loads(recorded), json.loads(today)
    except ValueError:
        if not today.startswith(recorded):
            yield f"the text was {recorded!r} and is {today!r}"
    else:
        yield from missing(*pair)
