"""What the operator tells Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
RECONCILES = Counter("fairlead_operator_reconciles", "Reconciles that ended.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "fairlead_operator_reconcile_seconds", "How long a reconcile takes.", registry=REGISTRY
)
QUEUED = Gauge("fairlead_operator_queued", "LLMDeployments that wait for a reconcile.", registry=REGISTRY)
LEADER = Gauge("fairlead_operator_leader", "1 where this operator holds the Lease.", registry=REGISTRY)
LLMDEPLOYMENTS = Gauge(
    "fairlead_operator_llmdeployments",
    "LLMDeployments by condition.",
    ["condition", "status"],
    registry=REGISTRY,
)
for condition in ("Ready", "Progressing", "Degraded", "NameTaken"):
    for status in ("True", "False"):
        LLMDEPLOYMENTS.labels(condition, status).set(0)

Conditions = Iterable[tuple[str, str]]  # type and status


def recount(before: Conditions, now: Conditions) -> None:
    """One LLMDeployment's conditions have changed."""
    for condition in before:
        LLMDEPLOYMENTS.labels(*condition).dec()
    for condition in now:
        LLMDEPLOYMENTS.labels(*condition).inc()
