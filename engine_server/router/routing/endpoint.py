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

    __slots__ = ("address", "in_flight", "last_used")

    def __init__(self, address: Address) -> None:
        self.address = address
        # Requests that were sent to it and have not ended.
        self.in_flight = 0
        # Time (perf_counter) of the last request that was sent to it; 0.0 before the first.
        self.last_used = 0.0
