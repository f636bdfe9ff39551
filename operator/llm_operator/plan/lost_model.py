"""Models that engines did not find on a user's claim, which was deleted and made anew, or emptied.

Such a claim is not watched: only the engines see what it holds.
"""

from typing import Any

from engine_server.contract.labels import CACHED_AT_ANNOTATION, ENGINE_CONTAINER, POD_TEMPLATE_ANNOTATION
from engine_server.contract.model_folder import reports_no_model
from llm_operator.observed import Manifest, Observed
from llm_operator.plan.ownership import owned_pods


def is_lost(workload: Manifest, observed: Observed) -> bool:
    """Return True if an engine of the Deployment's template has found no model since the last download."""
    template = annotation(workload, POD_TEMPLATE_ANNOTATION)
    current = [
        each for each in observed.replica_sets if annotation(each, POD_TEMPLATE_ANNOTATION) == template
    ]
    since = annotation(workload, CACHED_AT_ANNOTATION)
    ends = [end for pod in owned_pods(observed.pods, current) for end in ends_of_engine(pod)]
    return any(
        (end.get("finishedAt") or "") > since and reports_no_model(end.get("message", "")) for end in ends
    )


def ends_of_engine(pod: Manifest) -> list[dict[str, Any]]:
    """Return how the engine's container ended, now and before its last start."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    states = [
        entry.get(state, {})
        for entry in statuses
        if entry["name"] == ENGINE_CONTAINER
        for state in ("state", "lastState")
    ]
    return [state["terminated"] for state in states if "terminated" in state]


def annotation(owner: Manifest, name: str) -> str:
    return str(owner.get("metadata", {}).get("annotations", {}).get(name, ""))
