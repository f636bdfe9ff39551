"""The PodDisruptionBudget, which limits how many replicas a drain of nodes ends at a time."""

from collections.abc import Iterator

from engine_server.contract.cluster import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings


def key(name: str) -> ChildKey:
    return ChildKey("policy/v1", "PodDisruptionBudget", labels.child_name(name))


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    budget = deployment.spec.budget
    if not budget.enabled:
        return
    spec = {
        # A limit of missing replicas, not of present ones, so that a single replica can be evicted.
        "maxUnavailable": budget.max_unavailable,
        "selector": {"matchLabels": labels.selector(deployment.name)},
        # Replicas that are not ready would block a drain otherwise.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    yield child(deployment, key(deployment.name), settings, spec=spec)
