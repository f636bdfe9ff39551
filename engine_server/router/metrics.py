"""What the router counts: plain numbers on a request's way, Prometheus' text only when somebody asks."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counted
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .endpoints import Route

PREFIX = "fairlead_router_"
AT_ONCE = 64  # requests are booked together: one alone would find all of this out of the processor's caches
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        cumulative, rows = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows


class Metrics:
    def __init__(self) -> None:
        self.in_flight = 0
        self.requests: Counter[tuple[str, int]] = Counter()
        self.waits: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.retries: Counter[str] = Counter()
        self.interrupted = 0
        self.ejections = 0
        self._ended: list[tuple[str, int, float | None, float]] = []

    def request(self, model: str, status: int, waited: float | None, lasted: float) -> None:
        """One has ended: it waited so many seconds for an answer's begin, if one came, and lasted so many."""
        self._ended.append((model, status, waited, lasted))
        if len(self._ended) == AT_ONCE:
            self.book()

    def book(self) -> None:
        """Count those that have ended since."""
        for model, status, waited, lasted in self._ended:
            self.requests[model, status] += 1
            self.durations[model].observe(lasted)
            if waited is not None:
                self.waits[model].observe(waited)
        self._ended.clear()


class Exposition(Collector):
    """The metrics, and the state of the endpoints, as Prometheus reads them."""

    def __init__(self, metrics: Metrics, routes: Callable[[], Iterable[Route]]) -> None:
        self._metrics = metrics
        self._routes = routes
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        metrics = self._metrics
        metrics.book()
        requests = Counted(f"{PREFIX}requests", "Requests by answer", labels=["model", "code"])
        for (model, status), count in metrics.requests.items():
            requests.add_metric([model, str(status)], count)
        retries = Counted(f"{PREFIX}retries", "Requests sent to another replica", labels=["reason"])
        for reason, count in metrics.retries.items():
            retries.add_metric([reason], count)
        yield from (requests, retries)
        yield histogram("time_to_first_byte_seconds", "Until an answer began", metrics.waits)
        yield histogram("request_duration_seconds", "Until a request's end", metrics.durations)
        yield Counted(f"{PREFIX}interrupted", "Answers cut off by their replica", metrics.interrupted)
        yield Counted(f"{PREFIX}ejections", "Endpoints ejected", metrics.ejections)
        yield Gauge(f"{PREFIX}in_flight", "Requests under way", metrics.in_flight)
        labels = ["namespace", "deployment", "endpoint"]
        live = Gauge(f"{PREFIX}endpoint_live", "Whether an endpoint takes requests", labels=labels)
        busy = Gauge(f"{PREFIX}endpoint_in_flight", "Requests under way there", labels=labels)
        for route in self._routes():
            for endpoint in route.endpoints:
                values = [*route.deployment.key, str(endpoint.address)]
                live.add_metric(values, float(endpoint.live))
                busy.add_metric(values, float(endpoint.in_flight))
        yield from (live, busy)


def histogram(name: str, about: str, by_model: dict[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, about, labels=["model"])
    for model, one in by_model.items():
        family.add_metric([model], one.buckets(), one.total)
    return family
