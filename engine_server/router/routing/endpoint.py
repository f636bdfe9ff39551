"""Addresses of engines, and the endpoints that requests are sent to."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from engine_server.contract.base.authority import authority
from engine_server.contract.base.unix_socket import SCHEME, path_of
from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import EngineReport, ReportedLoad

# The path by which engines say whether they take requests, and those of other makes have one of their own.
READY_PATH = "/ready"
PATH_PATTERN = re.compile(r"/[!-~]*")
# A prompt without a first token adds to the load as one more request per so many bytes, about 4,000 tokens. A power of
# two, so that sums of such parts are exact and end at zero.
BYTES_PER_REQUEST = 16_384
# The load of other routers counts for so long after the engine's report.
REPORT_SECONDS = 1.0
RAMP_SECONDS = 10.0
LEAST_SHARE = 0.1

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Host and port of an engine, or of another router."""

    host: str
    port: int
    # That of the DNS by which the host was found, if it was.
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"http://{authority(self.host, self.port)}"

    @property
    def described(self) -> str:
        """The address as logs have it: with its name."""
        return f"{self} ({self.name})" if self.name else str(self)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the address in http://HOST[:PORT]. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise ValueError(f"an endpoint is http://HOST:PORT, not {url!r}")
        return cls(parts.hostname, parts.port or 80)

    async def connect(self, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """Return the protocol of a new connection. Raises OSError."""
        return (await asyncio.get_running_loop().create_connection(protocol, self.host, self.port))[1]

    async def open_streams(self) -> Streams:
        """Return the streams of a new connection. Raises OSError."""
        return await asyncio.open_connection(self.host, self.port)

    def attributes(self) -> dict[str, str | int]:
        """Return the address as attributes of a span."""
        attributes: dict[str, str | int] = {
            "server.address": self.name or self.host,
            "server.port": self.port,
        }
        return attributes | ({"network.peer.address": self.host} if self.name else {})


class SocketPath(NamedTuple):
    """Path of the Unix socket on which an engine of this machine listens."""

    path: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.path}"

    @property
    def described(self) -> str:
        """The address as logs have it."""
        return str(self)

    @classmethod
    def parse(cls, address: str) -> Self:
        """Return the path in unix:/PATH. Raises ValueError for anything else."""
        return cls(path_of(address))

    async def connect(self, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """Return the protocol of a new connection. Raises OSError."""
        return (await asyncio.get_running_loop().create_unix_connection(protocol, self.path))[1]

    async def open_streams(self) -> Streams:
        """Return the streams of a new connection. Raises OSError."""
        return await asyncio.open_unix_connection(self.path)

    def attributes(self) -> dict[str, str | int]:
        """Return the address as attributes of a span."""
        return {"server.address": self.path}


EngineAddress = Address | SocketPath


def parse_engine_address(text: str) -> EngineAddress:
    """Return the address in http://HOST[:PORT] or unix:/PATH. Raises ValueError for anything else."""
    if text.startswith(SCHEME):
        return SocketPath.parse(text)
    try:
        return Address.parse(text)
    except ValueError:
        raise ValueError(f"an endpoint is http://HOST:PORT or {SCHEME}/PATH, not {text!r}") from None


def parse_ready_path(text: str) -> str:
    """Return a path with its query, if it has one. Raises ValueError for what can't be in the line of a request."""
    if not PATH_PATTERN.fullmatch(text):
        raise ValueError(f"a path of readiness begins with / and has no spaces, unlike {text!r}")
    return text


class Endpoint:
    """One engine of a deployment, the requests that were sent to it, and its last report of itself.

    It is the same object for as long as the deployment lists its address. Times are of perf_counter.
    """

    __slots__ = (
        "_other_load",
        "_own_load",
        "_ramp_end",
        "address",
        "deployment",
        "ejected_at",
        "ejected_for",
        "failures_in_row",
        "fingerprints",
        "full_until",
        "in_flight",
        "last_used",
        "ready_path",
        "recent_ejections",
        "refused",
        "reported_at",
        "reported_load",
        "stream_settings",
    )

    def __init__(self, deployment: Key, address: EngineAddress) -> None:
        self.deployment = deployment
        self.address = address
        # It takes requests while it answers 200 at this path.
        self.ready_path = READY_PATH
        # Requests that were sent to it and have not ended.
        self.in_flight = 0
        # Those, and their prompts without a first token as a part of a request.
        self._own_load = 0.0
        # The load that other routers had sent at the last report.
        self._other_load = 0.0
        # Time until which it gets no new requests because it said that it is full; 0.0 if it is not.
        self.full_until = 0.0
        # It said so and has accepted no request since: the room that it reports is not believed.
        self.refused = False
        # Failures that may be the requests' own, since the last success.
        self.failures_in_row = 0
        # Number of ejections, which decays with time, and the time (perf_counter) of the last one.
        self.recent_ejections = 0.0
        self.ejected_at = 0.0
        # The reason of the last ejection.
        self.ejected_for = ""
        # The hashes of all that a continued stream depends on, as the engine reported them (`Fairlead-Model`): by
        # adapter, and with the key "" that of the model itself.
        self.fingerprints: dict[str, bytes] = {}
        # The hash of the settings of its streams (`Fairlead-Stream`); empty if it has reported none.
        self.stream_settings = b""
        self.reported_load = ReportedLoad()
        # Time of the last report of the load, 0.0 before the first.
        self.reported_at = 0.0
        self.begin_ramp(perf_counter())

    def begin_ramp(self, now: float) -> None:
        """Start with the least share: the engine is new, or has recovered, and its caches are empty."""
        # The time of the last request that it was sent, or of its start.
        self.last_used = now
        self._ramp_end = now + RAMP_SECONDS

    def load(self, now: float) -> float:
        """Return the number of requests that the engine has, prompts without a first token being parts of one."""
        if now < self.reported_at + REPORT_SECONDS:
            return self._own_load + self._other_load
        return self._own_load

    def share(self, now: float) -> float:
        """Return the part of an engine's usual load that it is to get, which grows to 1.0 in RAMP_SECONDS."""
        if now >= self._ramp_end:
            return 1.0
        return max(LEAST_SHARE, 1.0 - (self._ramp_end - now) / RAMP_SECONDS)

    def load_and_share(self, now: float) -> tuple[float, float]:
        """Return both at once: all policies by load need them of each candidate."""
        load = self._own_load
        if now < self.reported_at + REPORT_SECONDS:
            load += self._other_load
        return load, 1.0 if now >= self._ramp_end else self.share(now)

    def count(self, sent: float, prompt_bytes: int) -> None:
        """Count a request that was sent at this time."""
        self.in_flight += 1
        self.last_used = sent
        self._own_load += 1.0 + prompt_bytes / BYTES_PER_REQUEST

    def record_first_token(self, prompt_bytes: int) -> None:
        """Count the prompt of a request as processed."""
        self._own_load -= prompt_bytes / BYTES_PER_REQUEST

    def release(self, prompt_bytes: int) -> None:
        """Count a request as ended. prompt_bytes: 0 if it had a first token."""
        self.in_flight -= 1
        self._own_load -= 1.0 + prompt_bytes / BYTES_PER_REQUEST

    def record_report(self, report: EngineReport, adapter: str = "") -> None:
        """Record what an answer's head reports. adapter: the one that answered; empty: the model itself."""
        if report.fingerprint:
            self.fingerprints[adapter] = report.fingerprint
            self.stream_settings = report.settings
        if report.load is None:
            return
        self.reported_load = report.load
        self._other_load = max(0, report.load.running + report.load.waiting - self.in_flight)
        self.reported_at = perf_counter()
