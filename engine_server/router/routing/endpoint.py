"""Addresses of engines, and the endpoints that requests are sent to."""

from typing import NamedTuple, Self
from urllib.parse import urlsplit


class Address(NamedTuple):
    """Host and port of an engine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the address in http://HOST[:PORT]. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise ValueError(f"an endpoint is http://HOST:PORT, not {url!r}")
        return cls(parts.hostname, parts.port or 80)


class Endpoint:
    """One engine, and the requests that were sent to it. It is the same object for as long as its address is known."""

    __slots__ = ("address", "order")

    def __init__(self, address: Address) -> None:
        self.address = address
        # Requests that were sent to it and have not ended, and the time (perf_counter) of the last one, 0.0 before the
        # first. One value, since policies compare it for all endpoints at each request.
        self.order = (0, 0.0)

    @property
    def in_flight(self) -> int:
        return self.order[0]

    @property
    def last_used(self) -> float:
        return self.order[1]

    def count(self, sent: float) -> None:
        """Count a request that was sent at this time."""
        self.order = (self.order[0] + 1, sent)

    def release(self) -> None:
        """Count a request as ended."""
        self.order = (self.order[0] - 1, self.order[1])
