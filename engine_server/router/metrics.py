"""The counters of the router: plain numbers, since they are updated on the path of every request."""

from bisect import bisect_left
from collections import Counter, defaultdict

# Requests are counted in batches: counting each one alone would evict the forwarding code from the CPU's caches.
BATCH_SIZE = 64
# Upper bounds of histogram buckets, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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


class Metrics:
    """All that the router counts. Histograms and `requests` are current after `flush`."""

    def __init__(self) -> None:
        self.in_flight = 0
        # By model and status.
        self.requests: Counter[tuple[str, int]] = Counter()
        # By model.
        self.times_to_first_byte: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        # By the outcome of the attempt before.
        self.retries: Counter[str] = Counter()
        self.interrupted = 0
        self._ended: list[tuple[str, int, float | None, float]] = []

    def record(self, model: str, status: int, time_to_first_byte: float | None, duration: float) -> None:
        """Record the end of a request. Without an answer, it has no time to first byte."""
        self._ended.append((model, status, time_to_first_byte, duration))
        if len(self._ended) == BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Count the requests that were recorded since the last call."""
        for model, status, time_to_first_byte, duration in self._ended:
            self.requests[model, status] += 1
            self.durations[model].observe(duration)
            if time_to_first_byte is not None:
                self.times_to_first_byte[model].observe(time_to_first_byte)
        self._ended.clear()
