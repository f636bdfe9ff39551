"""Models that engines did not find on a user's claim, which was deleted and made anew, or emptied.

Such a claim is not watched: only the engines see what it holds.
"""

from engine_server.contract.labels import CACHED_AT_ANNOTATION, POD_TEMPLATE_ANNOTATION
from llm_operator.observed import Manifest, Observed, found_no_model
from llm_operator.plan.ownership import owned_pods


def is_lost(workload: Manifest, observed: Observed) -> bool:
    """Return True if an engine of the Deployment's template found no model, and started after the last download."""
    template = annotation(workload, POD_TEMPLATE_ANNOTATION)
    current = [
        each for each in observed.replica_sets if annotation(each, POD_TEMPLATE_ANNOTATION) == template
    ]
    since = annotation(workload, CACHED_AT_ANNOTATION)
    return any(found_no_model(pod, since) for pod in owned_pods(observed.pods, current))


def annotation(owner: Manifest, name: str) -> str:
    return str(owner.get("metadata", {}).get("annotations", {}).get(name, ""))
