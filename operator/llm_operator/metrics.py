"""What the operator tells Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
RECONCILES = Counter("fairlead_operator_reconciles", "Reconciles that ended.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "fairlead_operator_reconcile_seconds",
    "How long a reconcile takes.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
QUEUED = Gauge("fairlead_operator_queued", "LLMDeployments that wait for a reconcile.", registry=REGISTRY)
LEADER = Gauge("fairlead_operator_leader", "1 where this operator holds the Lease.", registry=REGISTRY)
LLMDEPLOYMENTS = Gauge(
    "fairlead_operator_llmdeployments",
    "LLMDeployments by condition.",
    ["condition", "status"],
    registry=REGISTRY,
)
CONDITIONS = ("Ready", "Progressing", "Degraded", "NameTaken")


def count_conditions(reported: Iterable[frozenset[tuple[str, str]]]) -> None:
    """`reported`: each LLMDeployment's conditions as (type, status)."""
    counts = {(condition, status): 0 for condition in CONDITIONS for status in ("True", "False")}
    for conditions in reported:
        for pair in conditions:
            counts[pair] = counts.get(pair, 0) + 1
    for (condition, status), count in counts.items():
        LLMDEPLOYMENTS.labels(condition, status).set(count)
