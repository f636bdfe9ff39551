"""The time in which a client wants its whole answer: the header field `X-Request-Timeout`."""

from math import inf
from typing import Self

import msgspec

from engine_server.contract.base.quoting import quote
from engine_server.contract.wire.headers import REQUEST_TIMEOUT, HeaderField

# An engine that gets a request at its deadline is not told 0, which it would refuse.
SHORTEST_SECONDS = 0.001


class TimeLeft(HeaderField, msgspec.Struct, frozen=True):
    """The seconds up to a request's deadline."""

    NAME = REQUEST_TIMEOUT

    seconds: float

    def value(self) -> str:
        return f"{max(self.seconds, SHORTEST_SECONDS):.3f}"

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return the time in the field's value. Raises ValueError for what is no number over 0."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds < inf:
            raise ValueError(f"{REQUEST_TIMEOUT} is {quote(value)}; it takes a number of seconds over 0")
        return cls(seconds)
