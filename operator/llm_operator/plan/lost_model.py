"""Models that engines did not find on a user's claim, which was deleted and made anew, or emptied.

Such a claim is not watched: only the engines see what it holds. A model is downloaded again once for each template:
engines that do not find it then either may never see what a Job writes, as with a volume of a node's own.
"""

from engine_server.contract.cluster.labels import (
    CACHED_AT_ANNOTATION,
    POD_TEMPLATE_ANNOTATION,
    RECORD_HASH_ANNOTATION,
    REFETCHED_FOR_ANNOTATION,
)
from llm_operator.observed import Manifest, Observed, annotation, found_no_model
from llm_operator.plan.ownership import owned_pods


def is_lost(workload: Manifest, observed: Observed) -> bool:
    """Return True if an engine of the Deployment's template found no model, and started after the last download.

    False once the model was downloaded again for that template.
    """
    if annotation(workload, REFETCHED_FOR_ANNOTATION) == annotation(workload, RECORD_HASH_ANNOTATION):
        return False
    template = annotation(workload, POD_TEMPLATE_ANNOTATION)
    current = [
        each for each in observed.replica_sets if annotation(each, POD_TEMPLATE_ANNOTATION) == template
    ]
    since = annotation(workload, CACHED_AT_ANNOTATION)
    return any(found_no_model(pod, since) for pod in owned_pods(observed.pods, current))
