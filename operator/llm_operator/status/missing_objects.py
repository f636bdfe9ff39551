"""Objects that a pod refers to and that do not exist.

The scheduler and the kubelet report them in prose alone, under the reasons Unschedulable, CreateContainerConfigError
and FailedMount, and the operator has no right to read Secrets. If the wording is not the known one, those
reasons and messages are reported as they are.
"""

import re

from engine_server.contract.cluster.reasons import Reason
from llm_operator.observed import Problem

# Kubernetes 1.30 to 1.35: `persistentvolumeclaim "NAME" not found`, and so for the others.
NOT_FOUND = re.compile(r'(persistentvolumeclaim|secret|configmap) "([^"]+)" not found')
REASONS = {
    "persistentvolumeclaim": (Reason.CLAIM_NOT_FOUND, "PersistentVolumeClaim"),
    "secret": (Reason.SECRET_NOT_FOUND, "Secret"),
    "configmap": (Reason.CONFIG_MAP_NOT_FOUND, "ConfigMap"),
}


def find_missing_object(message: str) -> Problem | None:
    """Return the problem that names the object that `message` reports as missing, or None."""
    found = NOT_FOUND.search(message)
    if found is None:
        return None
    reason, kind = REASONS[found[1]]
    return Problem(reason, f"there is no {kind} {found[2]}")
