"""The operator's Prometheus metrics."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from engine_server.contract.cluster.api import Key
from llm_operator.api.status import Status

# In seconds. A wait for a worker is far below one; a wait for another operator's Lease is up to a minute.
QUEUE_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Of status.start.
START_PHASES = ("scheduled", "pulled", "fetched", "loaded", "warmed", "ready")

# Of series about an LLMDeployment. Prometheus may replace `namespace`, but not `model`, NAMESPACE/NAME.
LABELS = ("namespace", "name", "model")

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
RECONCILES = Counter("fairlead_operator_reconciles", "Finished reconciles.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "fairlead_operator_reconcile_seconds", "Duration of a reconcile in seconds.", registry=REGISTRY
)
QUEUED = Gauge("fairlead_operator_queued", "LLMDeployments that wait for a reconcile.", registry=REGISTRY)
QUEUE_SECONDS = Histogram(
    "fairlead_operator_queue_seconds",
    "Time from the first event that asks for a reconcile to its start.",
    buckets=QUEUE_BOUNDS,
    registry=REGISTRY,
)
FOREIGN = Gauge(
    "fairlead_operator_foreign_llmdeployments",
    "LLMDeployments that another operator manages.",
    registry=REGISTRY,
)
UNKNOWN_ROUTERS = Gauge(
    "fairlead_operator_unknown_routers",
    "Routers that do not answer, and the list of routers if it fails.",
    registry=REGISTRY,
)
LEADER = Gauge("fairlead_operator_leader", "1 while this operator holds the Lease.", registry=REGISTRY)
# verb: as in RBAC rules (get, list, watch, create, update, patch, delete). code: the status, or `none` without answer.
API_REQUESTS = Counter(
    "fairlead_operator_api_requests", "Calls to the API server.", ["verb", "code"], registry=REGISTRY
)
# resource: the plural name. namespace: empty for a watch of all namespaces.
WATCH_RESTARTS = Counter(
    "fairlead_operator_watch_restarts",
    "Watches that ended and were opened again.",
    ["resource", "namespace"],
    registry=REGISTRY,
)
WATCH_AGE = Gauge(
    "fairlead_operator_watch_age_seconds",
    "Time since the watch was interrupted; 0 while it is open.",
    ["resource", "namespace"],
    registry=REGISTRY,
)
RELIST_FOUND = Counter(
    "fairlead_operator_relist_found",
    "Objects whose change or deletion a relist found before a watch reported it.",
    ["kind"],
    registry=REGISTRY,
)
NOT_KEPT = Gauge(
    "fairlead_operator_objects_not_kept",
    "Objects of a namespace that are read again at each look, since it has more than the operator keeps.",
    ["namespace"],
    registry=REGISTRY,
)
NAMESPACE_MISSING = Gauge(
    "fairlead_operator_namespace_missing",
    "1 while a watched namespace does not exist or may not be read.",
    ["namespace"],
    registry=REGISTRY,
)
for outcome in ("success", "error"):
    RECONCILES.labels(outcome)


class ReportedStatus(Collector):
    """The replicas and conditions of each LLMDeployment, as they were last reported."""

    def __init__(self) -> None:
        # The desired replicas, the status, and whether the pod template is outdated, None while there is none.
        self._by_key: dict[Key, tuple[int, Status, bool | None]] = {}

    def put(self, key: Key, desired_replicas: int, status: Status, is_outdated: bool | None) -> None:
        self._by_key[key] = desired_replicas, status, is_outdated

    def remove(self, key: Key) -> None:
        """Remove the series of an LLMDeployment that was deleted, or is another operator's."""
        self._by_key.pop(key, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the metric families; called by the registry."""
        desired = GaugeMetricFamily("fairlead_operator_desired_replicas", "spec.replicas.", labels=LABELS)
        ready = GaugeMetricFamily(
            "fairlead_operator_ready_replicas", "Replicas that are ready.", labels=LABELS
        )
        conditions = GaugeMetricFamily(
            "fairlead_operator_condition",
            "1 for the current status of each condition of each LLMDeployment.",
            labels=[*LABELS, "condition", "status"],
        )
        starts = GaugeMetricFamily(
            "fairlead_operator_start_seconds",
            "Duration of each phase of the last start of a replica.",
            labels=[*LABELS, "phase"],
        )
        outdated = GaugeMetricFamily(
            "fairlead_operator_template_outdated",
            "1 if replicas have another pod template than this operator would give them now.",
            labels=LABELS,
        )
        for key, (desired_replicas, status, is_outdated) in self._by_key.items():
            labels = (*key, str(key))
            desired.add_metric(labels, desired_replicas)
            ready.add_metric(labels, status.ready_replicas)
            if is_outdated is not None:
                outdated.add_metric(labels, is_outdated)
            for condition in status.conditions:
                conditions.add_metric([*labels, condition.type, condition.status], 1)
            for phase in START_PHASES:
                seconds = getattr(status.start, phase, None)
                if seconds is not None:
                    starts.add_metric([*labels, phase], seconds)
        return desired, ready, conditions, starts, outdated


class ScalingDecisions(Collector):
    """The last decision of the autoscaler on each LLMDeployment that it scales."""

    def __init__(self) -> None:
        # Wanted replicas and reason.
        self._by_key: dict[Key, tuple[int, str]] = {}

    def put(self, key: Key, replicas: int, reason: str) -> None:
        self._by_key[key] = replicas, reason

    def remove(self, key: Key) -> None:
        """Remove the series of an LLMDeployment that is scaled no more."""
        self._by_key.pop(key, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the metric families; called by the registry."""
        wanted = GaugeMetricFamily(
            "fairlead_operator_wanted_replicas",
            "Replicas that the autoscaler wants.",
            labels=LABELS,
        )
        reasons = GaugeMetricFamily(
            "fairlead_operator_scaling_reason",
            "1 for the reason of the autoscaler's last decision on each LLMDeployment.",
            labels=[*LABELS, "reason"],
        )
        for key, (replicas, reason) in self._by_key.items():
            labels = (*key, str(key))
            wanted.add_metric(labels, replicas)
            reasons.add_metric([*labels, reason], 1)
        yield from (wanted, reasons)


STATUS = ReportedStatus()
REGISTRY.register(STATUS)
SCALING = ScalingDecisions()
REGISTRY.register(SCALING)
