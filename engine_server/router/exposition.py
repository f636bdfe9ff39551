"""The metrics in Prometheus' text format."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_server.router.metrics import Histogram, Metrics
from engine_server.router.routing.directory import Directory
from engine_server.router.routing.health import Health

PREFIX = "fairlead_router_"


class Exposition(Collector):
    """Collects the counters and the state of the endpoints when Prometheus asks for them."""

    def __init__(self, metrics: Metrics, directory: Directory, health: Health) -> None:
        self._metrics = metrics
        self._directory = directory
        self._health = health
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families; called by the registry."""
        metrics = self._metrics
        metrics.flush()
        requests = CounterMetricFamily(
            f"{PREFIX}requests", "Requests by model and status", labels=["model", "code"]
        )
        for (model, status), count in metrics.requests.items():
            requests.add_metric([model, str(status)], count)
        retries = CounterMetricFamily(
            f"{PREFIX}retries", "Requests sent to another replica", labels=["reason"]
        )
        for reason, count in metrics.retries.items():
            retries.add_metric([reason], count)
        yield from (requests, retries)
        yield histogram(
            "time_to_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer",
            metrics.times_to_first_byte,
        )
        yield histogram(
            "request_duration_seconds", "Time from a request's arrival to its end", metrics.durations
        )
        yield CounterMetricFamily(
            f"{PREFIX}interrupted", "Answers that broke off at the replica", metrics.interrupted
        )
        yield CounterMetricFamily(f"{PREFIX}ejections", "Endpoints ejected", self._health.ejections)
        yield GaugeMetricFamily(f"{PREFIX}in_flight", "Requests in flight", metrics.in_flight)
        yield from self._endpoints()

    def _endpoints(self) -> Iterable[Metric]:
        labels = ["namespace", "deployment", "endpoint"]
        live = GaugeMetricFamily(f"{PREFIX}endpoint_live", "1 if the endpoint is live, else 0", labels=labels)
        in_flight = GaugeMetricFamily(
            f"{PREFIX}endpoint_in_flight", "Requests in flight at the endpoint", labels=labels
        )
        for route in self._directory.routes:
            for endpoint in route.endpoints:
                values = [*route.deployment.key, str(endpoint.address)]
                live.add_metric(values, float(self._health.is_live(endpoint)))
                in_flight.add_metric(values, float(endpoint.in_flight))
        return live, in_flight


def histogram(name: str, documentation: str, by_model: dict[str, Histogram]) -> HistogramMetricFamily:
    """Return histograms by model as one metric family."""
    family = HistogramMetricFamily(PREFIX + name, documentation, labels=["model"])
    for model, durations in by_model.items():
        family.add_metric([model], durations.buckets(), durations.total)
    return family
