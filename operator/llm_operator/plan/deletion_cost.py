"""The costs of pods, by which Kubernetes chooses those that a scale-down removes: the requests that they have."""

from collections.abc import Iterable, Mapping
from typing import Any

from llm_operator.observed import Manifest, Observed, workload_key
from llm_operator.plan.plan import Plan

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
# The cost of a pod without the annotation.
DEFAULT = "0"


def is_scale_down(goal: Plan, observed: Observed) -> bool:
    """Return True if a plan removes some of the replicas, but not all."""
    workload = workload_key(observed.key.name)
    planned, existing = goal.apply.get(workload), observed.children.get(workload)
    if planned is None or existing is None:
        return False
    before: int = existing["spec"].get("replicas", 1)
    after: int = planned["spec"]["replicas"]
    return 0 < after < before


def changed_costs(pods: Iterable[Manifest], requests: Mapping[str, int]) -> dict[str, str]:
    """Return the new costs by the names of pods whose cost changes, where `requests` are by the pods' addresses."""
    changed = {}
    for pod in pods:
        address = pod.get("status", {}).get("podIP")
        if address is None or "deletionTimestamp" in pod["metadata"]:
            continue
        cost = str(requests.get(address, 0))
        if cost != current_cost(pod):
            changed[pod["metadata"]["name"]] = cost
    return changed


def current_cost(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("annotations", {}).get(ANNOTATION, DEFAULT))
