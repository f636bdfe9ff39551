"""The counters of the router: plain numbers, since they are updated on the path of every request."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.demand import Demand
from engine_server.router.rejections import Rejections
from engine_server.router.routing.directory import Target

# Requests are counted in batches: counting each one alone would evict the forwarding code from the CPU's caches.
BATCH_SIZE = 64
# Upper bounds of histogram buckets, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# The statuses that are counted apart. Others, which an engine may choose freely, count as their class.
COUNTED_STATUSES = frozenset(
    (
        200,
        204,
        400,
        401,
        403,
        404,
        405,
        408,
        409,
        411,
        413,
        415,
        422,
        429,
        431,
        499,
        500,
        501,
        502,
        503,
        504,
        529,
    )
)


class Histogram:
    """Durations in seconds, counted by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bound and the cumulative count of each bucket, as Prometheus defines them."""
        cumulative = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows


class WatchState(NamedTuple):
    """The state of one watch of the Kubernetes API."""

    kind: str
    # Empty: all namespaces.
    namespace: str
    # Seconds since the API server was last heard of.
    age: float
    # Number of lists and watches that failed.
    failures: int


class Ended(msgspec.Struct, gc=False, kw_only=True):
    """The end of a request. Times are in seconds, from its arrival."""

    # None: its name means none.
    deployment: Key | None
    # Empty: the deployment's own model.
    adapter: str = ""
    status: int
    # None without an answer.
    time_to_first_byte: float | None = None
    duration: float
    # The name of the caller's key; empty without one.
    key: str = ""
    # None if the engine reported none.
    usage: ReportedUsage | None = None


def counted_status(status: int) -> str:
    """Return a status as it is counted: one of those that APIs of models use, or else its class, such as 4xx."""
    return str(status) if status in COUNTED_STATUSES else f"{status // 100}xx"


class Metrics:
    """All that the router counts. A deployment of None stands for requests that name none that exists.

    Histograms and `requests` are current after `flush`.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.demand = Demand()
        # By deployment and counted status.
        self.requests: Counter[tuple[Key | None, str]] = Counter()
        # Those of adapters, by deployment, adapter and counted status.
        self.adapter_requests: Counter[tuple[Key, str, str]] = Counter()
        # By deployment.
        self.times_to_first_byte: defaultdict[Key | None, Histogram] = defaultdict(Histogram)
        self.durations: defaultdict[Key | None, Histogram] = defaultdict(Histogram)
        # Errors that the router answered itself, by deployment and error code.
        self.errors: Counter[tuple[Key | None, str]] = Counter()
        # By the outcome of the attempt before.
        self.retries: Counter[str] = Counter()
        # Streams that went on at another replica, by the reason.
        self.resumed: Counter[str] = Counter()
        # Answers that broke off for the client.
        self.interrupted = 0
        # That engines reported, by the name of the caller's key, and by `prompt` or `completion`.
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.rejections = Rejections()
        self._ended: list[Ended] = []

    def record(self, ended: Ended) -> None:
        """Record the end of a request."""
        self._ended.append(ended)
        if len(self._ended) == BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Count the requests that were recorded since the last call."""
        for ended in self._ended:
            deployment, usage = ended.deployment, ended.usage
            status = counted_status(ended.status)
            self.requests[deployment, status] += 1
            if deployment is not None and ended.adapter:
                self.adapter_requests[deployment, ended.adapter, status] += 1
            self.durations[deployment].observe(ended.duration)
            if ended.time_to_first_byte is not None:
                self.times_to_first_byte[deployment].observe(ended.time_to_first_byte)
            if usage is not None:
                self.tokens[ended.key, "prompt"] += usage.prompt_tokens
                self.tokens[ended.key, "completion"] += usage.completion_tokens
        self._ended.clear()

    def keep_only(self, targets: Collection[Target], keys: Collection[str]) -> None:
        """Forget all other deployments, adapters and keys, which were removed."""
        known = {None, *(target.deployment for target in targets)}
        by_deployment: Iterable[dict[Key | None, Histogram]] = (self.times_to_first_byte, self.durations)
        for histograms in by_deployment:
            for deployment in histograms.keys() - known:
                del histograms[deployment]
        for status_count in [pair for pair in self.requests if pair[0] not in known]:
            del self.requests[status_count]
        for adapter_count in [one for one in self.adapter_requests if one[:2] not in targets]:
            del self.adapter_requests[adapter_count]
        for error_count in [pair for pair in self.errors if pair[0] not in known]:
            del self.errors[error_count]
        for token_count in [pair for pair in self.tokens if pair[0] and pair[0] not in keys]:
            del self.tokens[token_count]
