"""The settings of a manifest that have no effect without a cluster."""

from typing import Any

# By the path of a field: what holds on this machine in its place.
LEFT_OUT = {
    "spec.model.secretRef": "the token of the hub and the keys of S3 come from your environment",
    "spec.model.cache": "models are kept in your own caches",
    "spec.engine.image": "the engine is the one of this installation",
    "spec.resources.gpuResource": "GPUs are those that CUDA sees",
    "spec.resources.cpu": "all replicas share the cores evenly",
    "spec.resources.memory": "nothing limits the memory of processes",
    "spec.resources.shm": "nothing limits shared memory",
    "spec.resources.disk": "nothing limits the use of disks",
    "spec.autoscaling": "the number of replicas stays as it is",
    "spec.rollout.strategy": "nothing is rolled out",
    "spec.rollout.maxSurge": "nothing is rolled out",
    "spec.rollout.maxUnavailable": "nothing is rolled out",
    "spec.rollout.progressDeadlineSeconds": "nothing is rolled out",
    "spec.budget": "there are no nodes to drain",
    "spec.profile": "only an operator has profiles",
    "spec.serviceAccount": "there are no pods",
    "spec.podTemplate": "there are no pods; the variables of its engine container are used",
}


def left_out(manifest: dict[str, Any]) -> list[str]:
    """Return a line for each field of the manifest that has no effect here, with the reason."""
    return [
        f"{path} has no effect here: {reason}"
        for path, reason in LEFT_OUT.items()
        if is_given(manifest, path.split("."))
    ]


def is_given(value: Any, path: list[str]) -> bool:
    """Return True if there is a value at a path of fields. Null counts as absent, as for the API server."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value is not None
