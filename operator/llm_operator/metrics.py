"""The operator's Prometheus metrics."""

from collections.abc import Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from llm_operator.api.status import ConditionType

REGISTRY = CollectorRegistry()
RECONCILES = Counter("fairlead_operator_reconciles", "Finished reconciles.", ["outcome"], registry=REGISTRY)
RECONCILE_SECONDS = Histogram(
    "fairlead_operator_reconcile_seconds", "Duration of a reconcile in seconds.", registry=REGISTRY
)
QUEUED = Gauge("fairlead_operator_queued", "LLMDeployments that wait for a reconcile.", registry=REGISTRY)
LEADER = Gauge("fairlead_operator_leader", "1 while this operator holds the Lease.", registry=REGISTRY)
LLMDEPLOYMENTS = Gauge(
    "fairlead_operator_llmdeployments",
    "LLMDeployments by condition.",
    ["condition", "status"],
    registry=REGISTRY,
)
for condition in get_args(ConditionType):
    for status in ("True", "False"):
        LLMDEPLOYMENTS.labels(condition, status).set(0)

# Pairs of type and status.
Conditions = Iterable[tuple[str, str]]


def recount(before: Conditions, now: Conditions) -> None:
    """Count a change of one LLMDeployment's conditions."""
    for condition in before:
        LLMDEPLOYMENTS.labels(*condition).dec()
    for condition in now:
        LLMDEPLOYMENTS.labels(*condition).inc()
