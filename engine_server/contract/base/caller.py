"""The caller of a request, as the router reports it to engines that ask for a key.

Engines learn no names: `id` and `scope` are pseudonyms, which are derived from the router's root key.
"""

import hmac
import re
from typing import Annotated

import msgspec

# Its negative fits 64 bits too.
MAX_PRIORITY = 10**18 - 1
Priority = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]

_DIGITS = 32
# Further pairs may follow.
_CALLER = re.compile(r"id=([0-9a-f]{32}), scope=([0-9a-f]{32}), priority=(-?[0-9]{1,18})(?:, .*)?")


class ReportedCaller(msgspec.Struct, frozen=True):
    """The caller of a request."""

    # Requests with the same id share the caller's part of the engine.
    id: str
    # Only requests with the same scope share blocks of the prefix cache.
    scope: str
    # A lower number runs first.
    priority: Priority

    def value(self) -> str:
        """Return the value of the header field `Fairlead-Caller`."""
        return f"id={self.id}, scope={self.scope}, priority={self.priority}"

    @classmethod
    def parse(cls, value: str) -> "ReportedCaller | None":
        """Return the caller in the field's value, or None for anything else."""
        match = _CALLER.fullmatch(value)
        return cls(match[1], match[2], int(match[3])) if match else None


def pseudonym(root: bytes, kind: str, name: str) -> str:
    """Return the hexadecimal digits that stand for a caller or a scope.

    root: the router's root key. kind: "caller" or "scope". No key of a deployment is derived from a message with a
    colon and without a slash.
    """
    return hmac.new(root, f"{kind}:{name}".encode(), "sha256").hexdigest()[:_DIGITS]
