"""The state of a rollout: that it is complete, and failures that are certain long before its deadline."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_server.contract.cluster.labels import POD_TEMPLATE_ANNOTATION
from engine_server.contract.cluster.reasons import Reason
from llm_operator.observed import Manifest, Problem, has_replicas, owners_of, revision
from llm_operator.status.problems import condition, statuses
from llm_operator.status.scheduling import FOR_OTHER_NODES

# Reasons for which a container waits after repeated failures.
GIVEN_UP = (
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL_BACK_OFF,
    "ErrImagePull",
    Reason.INVALID_IMAGE_NAME,
    Reason.ERR_IMAGE_NEVER_PULL,
)
# A container that was restarted so often has failed repeatedly, even while it runs again.
RESTARTS = 2
# The Deployment's reason once a rollout is complete. Scaling keeps it.
ROLLED_OUT = "NewReplicaSetAvailable"


def is_rolled_out(workload: Manifest, replica_sets: Sequence[Manifest]) -> bool:
    """Return True if the template of the Deployment has reached all replicas, whatever their number.

    The ReplicaSets tell it too, since the Deployment's status lags behind its template.
    """
    newest = max(replica_sets, key=revision, default=workload)
    former = [each for each in replica_sets if each is not newest]
    is_current = recorded_template(newest) == recorded_template(workload)
    is_complete = condition(workload, "Progressing").get("reason") == ROLLED_OUT
    return is_complete and is_current and not any(map(has_replicas, former))


def recorded_template(owner: Manifest) -> str | None:
    """Return the text of the template that a Deployment, or a ReplicaSet of it, was made with."""
    text: str | None = owner["metadata"].get("annotations", {}).get(POD_TEMPLATE_ANNOTATION)
    return text


def failing_pods(pods: Sequence[Manifest], replica_sets: Sequence[Manifest]) -> list[Manifest]:
    """Return the pods of the newest revision that have failed repeatedly."""
    newest = max(replica_sets, key=revision, default=None)
    return [pod for pod in pods if is_of(pod, newest) and has_failed_repeatedly(pod)]


def is_of(pod: Manifest, replica_set: Manifest | None) -> bool:
    """Return True for a pod of this ReplicaSet; of any if none is known."""
    return replica_set is None or replica_set["metadata"]["uid"] in owners_of(pod)


def has_failed_repeatedly(pod: Mapping[str, Any]) -> bool:
    return any(has_container_failed(entry) for entry in statuses(pod))


def has_container_failed(container: Mapping[str, Any]) -> bool:
    waiting = container.get("state", {}).get("waiting", {})
    is_restarted = not container.get("ready") and container.get("restartCount", 0) >= RESTARTS
    return is_restarted or waiting.get("reason") in GIVEN_UP


def with_surge_remedy(problem: Problem, workload: Manifest) -> Problem:
    """Return the problem of a pod that lacks a GPU or a volume, with the remedy where former replicas may keep these.

    Without a spare GPU, or with a volume for one node or one pod, a surge waits until its deadline.
    """
    if lacks_volume(problem):
        effect = "and leaves it the volume"
    elif lacks_device(problem, workload):
        effect = "and needs no spare GPU"
    else:
        return problem
    remedy = f"rollout.strategy: inPlace ends a replica before its successor starts, {effect}"
    return Problem(problem.reason, f"{problem.message}; {remedy}")


def is_surge(workload: Manifest, wanted: int) -> bool:
    """Return True if there are more replicas than wanted, since a rollout starts some before it ends others."""
    return bool(workload.get("status", {}).get("replicas", 0) > wanted)


def lacks_volume(problem: Problem) -> bool:
    """Return True if another pod or another node has the volume that a pod needs."""
    return problem.reason == Reason.VOLUME_IN_USE or FOR_OTHER_NODES in problem.message


def lacks_device(problem: Problem, workload: Manifest) -> bool:
    return problem.reason == Reason.UNSCHEDULABLE and any(
        f"too little free {resource}" in problem.message for resource in extended_resources(workload)
    )


def extended_resources(workload: Manifest) -> set[str]:
    """Return the names of the devices that the pods of a Deployment ask for, such as nvidia.com/gpu."""
    containers = workload.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    limits = [container.get("resources", {}).get("limits", {}) for container in containers]
    return {name for given in limits for name in given if "/" in name}
