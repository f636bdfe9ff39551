"""The report of an engine in the heads of its answers, which a router strips and clients don't see."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Self

import msgspec

from engine_server.contract.base.ranges import MOST, Count
from engine_server.contract.wire.digests import is_digest
from engine_server.contract.wire.headers import LOAD, MODEL, STREAM, USAGE, HeaderField

# Counts have at most nine digits, and the share is 0 to 1. Further pairs may follow.
_LOAD = re.compile(
    rb"running=(\d{1,9}), waiting=(\d{1,9}), room=(\d{1,9}), kv=(0(?:\.\d{1,9})?|1(?:\.0{1,9})?)"
    rb"(?:, context=(\d{1,9}))?(?:, .*)?"
)
_USAGE = re.compile(rb"prompt=([0-9]{1,10}), completion=([0-9]{1,10})")
# No value is longer.
LONGEST_VALUE = 1024


class Fingerprint(HeaderField, bytes):
    """The hash of all that a continued stream depends on, such as weights, tokenizer and dtype."""

    NAME = MODEL
    # Engines make 32 hexadecimal digits.
    LONGEST = 64

    def value(self) -> str:
        return self.decode("latin-1")

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return the fingerprint in the field's value, or None for what is none."""
        return cls(value) if len(value) <= cls.LONGEST else None


class StreamSettings(HeaderField, bytes):
    """The hash of the settings of streams: sampling defaults, default template arguments, formats, parsers."""

    NAME = STREAM

    def value(self) -> str:
        return self.decode()

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return the hash in the field's value, or None for what is none."""
        return cls(value) if is_digest(value.decode("latin-1")) else None


class ReportedLoad(HeaderField, msgspec.Struct, frozen=True, gc=False):
    """The load that an engine reports of itself, whichever routers its requests come from."""

    NAME = LOAD

    running: int = 0
    waiting: int = 0
    # Requests that it would run besides.
    room: int = 0
    # Share of the KV cache that is in use.
    kv: float = 0.0
    # Tokens of prompt and answer that its model takes; 0 if it doesn't say.
    context: int = 0

    def value(self) -> str:
        return (
            f"running={self.running}, waiting={self.waiting}, room={self.room}, kv={self.kv:.3f}, "
            f"context={self.context}"
        )

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return the load in the field's value, or None for one of another form or out of range."""
        match = _LOAD.fullmatch(value)
        if match is None:
            return None
        running, waiting, room, kv, context = match.groups()
        return cls(int(running), int(waiting), int(room), float(kv), int(context or 0))


class ReportedUsage(HeaderField, msgspec.Struct, frozen=True):
    """Numbers of tokens of a whole answer."""

    NAME = USAGE

    prompt_tokens: Count
    completion_tokens: Count

    def value(self) -> str:
        return f"prompt={self.prompt_tokens}, completion={self.completion_tokens}"

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return the numbers in the field's value, or None for another form or numbers out of range."""
        match = _USAGE.fullmatch(value)
        if match is None:
            return None
        usage = cls(int(match[1]), int(match[2]))
        return usage if max(usage.prompt_tokens, usage.completion_tokens) <= MOST else None


class EngineReport(msgspec.Struct, frozen=True):
    """All that an answer's head reports. An engine of another make reports nothing."""

    fingerprint: bytes = b""
    settings: bytes = b""
    load: ReportedLoad | None = None
    usage: ReportedUsage | None = None
    # Fields of another form or out of range, which count as missing.
    num_invalid: int = 0

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> Self:
        """Return the report in an answer's fields, whose names are in lower case."""
        found: dict[str, Any] = {}
        num_invalid = 0
        for name, key, parse in _FIELDS:
            if value := fields.get(key):
                parsed = parse(value) if len(value) <= LONGEST_VALUE else None
                if parsed is None:
                    num_invalid += 1
                else:
                    found[name] = parsed
        return cls(**found, num_invalid=num_invalid)


# Of each field of a report: its key among an answer's fields, and its parser. An engine's answers have few different
# values, one after the other.
_FIELDS = tuple(
    (name, kind.NAME.lower().encode(), lru_cache(maxsize=256)(kind.parse))
    for name, kind in (
        ("fingerprint", Fingerprint),
        ("settings", StreamSettings),
        ("load", ReportedLoad),
        ("usage", ReportedUsage),
    )
)
