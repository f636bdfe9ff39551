"""The metrics in Prometheus' text format."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_server.contract.cluster.api import Key
from engine_server.router.callers.ledger import Ledger
from engine_server.router.metrics import Histogram, Metrics, WatchState
from engine_server.router.routing.directory import Directory
from engine_server.router.routing.health import Cause, Health
from engine_server.router.routing.policies.registry import policy_name

PROMETHEUS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
PREFIX = "fairlead_router_"
# Statuses that are exported before their first request, since Prometheus sees no increase in a series' first value.
FAILURES = (500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of the process besides its requests; each function returns a part of it as it is."""

    watches: Callable[[], Iterable[WatchState]]
    # Bytes of the bodies of all requests, of what streams hold, and of answers that clients have not taken.
    buffer_bytes: Callable[[], int]
    forgotten_bodies: Callable[[], int]
    dropped_lines: Callable[[], int]


class Exposition(Collector):
    """Collects the counters and the state of the endpoints when Prometheus asks for them.

    Labels have names that operators chose and codes, never a value that a client chose. The series of a deployment end
    with it.
    """

    def __init__(
        self,
        metrics: Metrics,
        directory: Directory,
        health: Health,
        ledger: Ledger,
        held: Callable[[], Mapping[Key, int]],
        process: ProcessState,
    ) -> None:
        self._metrics = metrics
        self._directory = directory
        self._health = health
        self._ledger = ledger
        self._held = held
        self._process = process
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families; called by the registry."""
        self._metrics.flush()
        self._metrics.keep_only(self._directory.targets(), self._ledger.accounts)
        yield from self._requests()
        yield from self._adapters()
        yield from self._attempts()
        yield from self._endpoints()
        yield from self._policies()
        yield from self._environment()

    def _requests(self) -> Iterable[Metric]:
        metrics = self._metrics
        requests = counter("requests", "Requests by status", ["model", "code"])
        unseen = {
            (route.deployment.key, str(status)): 0 for route in self._directory.routes for status in FAILURES
        }
        for (deployment, status), count in (unseen | metrics.requests).items():
            requests.add_metric([label(deployment), status], count)
        errors = counter("errors", "Errors that the router answered itself", ["model", "reason"])
        for (deployment, code), count in metrics.errors.items():
            errors.add_metric([label(deployment), code], count)
        held = gauge("held", "Requests that wait for a replica", ["model"])
        for key, count in self._held().items():
            held.add_metric([label(key)], count)
        yield from (requests, errors, held)
        yield GaugeMetricFamily(f"{PREFIX}in_flight", "Requests in flight", metrics.in_flight)
        yield histogram(
            "time_to_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer",
            metrics.times_to_first_byte,
        )
        yield histogram(
            "request_duration_seconds", "Time from a request's arrival to its end", metrics.durations
        )
        tokens = counter("tokens", "Tokens that engines reported, by the caller's key", ["key", "kind"])
        for (name, kind), count in metrics.tokens.items():
            tokens.add_metric([name, kind], count)
        yield tokens

    def _adapters(self) -> Iterable[Metric]:
        requests = counter(
            "adapter_requests", "Requests for an adapter by status", ["model", "adapter", "code"]
        )
        for (deployment, name, status), count in self._metrics.adapter_requests.items():
            requests.add_metric([label(deployment), name, status], count)
        endpoints = gauge("adapter_endpoints", "Endpoints that have the adapter", ["model", "adapter"])
        for route in self._directory.routes:
            for name, adapter in route.adapters.items():
                endpoints.add_metric([label(route.deployment.key), name], len(adapter.endpoints))
        return requests, endpoints

    def _attempts(self) -> Iterable[Metric]:
        yield by_reason("retries", "Requests sent to another replica", self._metrics.retries.items())
        yield by_reason("resumed", "Streams that went on at another replica", self._metrics.resumed.items())
        yield CounterMetricFamily(
            f"{PREFIX}interrupted", "Answers that broke off for the client", self._metrics.interrupted
        )
        ejections = dict.fromkeys(Cause, 0) | self._health.ejections
        yield by_reason("ejections", "Endpoints ejected", ejections.items())
        rejected = counter("rejected", "What the router did not accept, by who sent it", ["sender", "reason"])
        for (sender, reason), count in self._metrics.rejections.counts.items():
            rejected.add_metric([sender, reason], count)
        yield rejected

    def _endpoints(self) -> Iterable[Metric]:
        labels = ["namespace", "deployment", "model", "endpoint"]
        live = gauge("endpoint_live", "1 if the endpoint is live, else 0", labels)
        in_flight = gauge("endpoint_in_flight", "Requests in flight at the endpoint", labels)
        for route in self._directory.routes:
            for endpoint in route.endpoints:
                key = route.deployment.key
                values = [*key, label(key), str(endpoint.address)]
                live.add_metric(values, float(self._health.is_live(endpoint)))
                in_flight.add_metric(values, float(endpoint.in_flight))
        return live, in_flight

    def _policies(self) -> Iterable[Metric]:
        picks = counter(
            "ring_picks",
            "Choices by consistent hashing: the key's own endpoint or another",
            ["model", "policy", "result"],
        )
        for route in self._directory.routes:
            labels = [label(route.deployment.key), policy_name(route.policy)]
            if route.policy.has_ring:
                picks.add_metric([*labels, "hit"], route.ring_picks[True])
                picks.add_metric([*labels, "spill"], route.ring_picks[False])
        return (picks,)

    def _environment(self) -> Iterable[Metric]:
        labels = ["kind", "namespace"]
        age = gauge("watch_age_seconds", "Time since the API server was last heard of", labels)
        failures = counter("watch_failures", "Lists and watches that failed", labels)
        for watch in self._process.watches():
            age.add_metric([watch.kind, watch.namespace], watch.age)
            failures.add_metric([watch.kind, watch.namespace], watch.failures)
        yield from (age, failures)
        yield GaugeMetricFamily(
            f"{PREFIX}buffer_bytes",
            "Bytes of requests' bodies, of what streams hold, and of unread answers",
            self._process.buffer_bytes(),
        )
        yield CounterMetricFamily(
            f"{PREFIX}forgotten_bodies",
            "Bodies of streams that were forgotten for lack of memory",
            self._process.forgotten_bodies(),
        )
        yield CounterMetricFamily(
            f"{PREFIX}log_lines_dropped",
            "Lines of the log that were dropped because they were not read",
            self._process.dropped_lines(),
        )


def label(deployment: Key | None) -> str:
    """Return the label `model` of a deployment: NAMESPACE/NAME."""
    return "" if deployment is None else str(deployment)


def counter(name: str, documentation: str, labels: list[str]) -> CounterMetricFamily:
    """Return a counter without series yet."""
    return CounterMetricFamily(PREFIX + name, documentation, labels=labels)


def gauge(name: str, documentation: str, labels: list[str]) -> GaugeMetricFamily:
    """Return a gauge without series yet."""
    return GaugeMetricFamily(PREFIX + name, documentation, labels=labels)


def by_reason(name: str, documentation: str, counts: Iterable[tuple[str, int]]) -> CounterMetricFamily:
    """Return counts by reason as one metric family."""
    family = counter(name, documentation, ["reason"])
    for reason, count in counts:
        family.add_metric([reason], count)
    return family


def histogram(
    name: str, documentation: str, by_deployment: Mapping[Key | None, Histogram]
) -> HistogramMetricFamily:
    """Return histograms by deployment as one metric family."""
    family = HistogramMetricFamily(PREFIX + name, documentation, labels=["model"])
    for deployment, durations in by_deployment.items():
        family.add_metric([label(deployment)], durations.buckets(), durations.total)
    return family
