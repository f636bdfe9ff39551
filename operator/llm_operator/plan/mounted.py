"""The ConfigMaps that pods mount, and without which a pod that starts would wait for ever."""

from collections.abc import Iterator, Mapping

from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed, has_replicas, workload_key
from llm_operator.plan.pod.template import typed


def mounted(
    deployment: LLMDeployment, observed: Observed, planned: Mapping[ChildKey, Manifest]
) -> set[ChildKey]:
    """Return the ConfigMaps of the Deployment's template, as it is and as planned, and of ReplicaSets with replicas.

    Files are also those of ReplicaSets without replicas, to whose templates a rollback returns.
    """
    names = {name for owner in owners(deployment, observed, planned) for name in config_maps(owner)}
    retained = {name for owner in observed.replica_sets for name in config_maps(owner)}
    names |= {name for name in retained if name.startswith(f"{deployment.name}-files-")}
    status = observed.workload(deployment.name).get("status", {})
    if status.get("replicas", 0) != status.get("updatedReplicas", 0):
        # There are former replicas, whose ReplicaSet may not have been listed yet.
        names |= {key.name for key in observed.children if key.kind == "ConfigMap"}
    return {ChildKey("v1", "ConfigMap", name) for name in names}


def config_maps(owner: Manifest) -> set[str]:
    return typed(owner.get("spec", {}).get("template")).config_maps


def owners(
    deployment: LLMDeployment, observed: Observed, planned: Mapping[ChildKey, Manifest]
) -> Iterator[Manifest]:
    """Yield the objects whose templates pods are, or will be, made from."""
    yield observed.workload(deployment.name)
    yield planned.get(workload_key(deployment.name), {})
    for replica_set in observed.replica_sets:
        if has_replicas(replica_set):
            yield replica_set
