"""The ConfigMaps that pods mount, and without which a pod that starts would wait for ever."""

from collections.abc import Iterator, Mapping

from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed, workload_key
from llm_operator.plan.pod.template import typed


def mounted(
    deployment: LLMDeployment, observed: Observed, planned: Mapping[ChildKey, Manifest]
) -> set[ChildKey]:
    """Return the ConfigMaps of the Deployment's template, as it is and as planned, and of ReplicaSets with replicas."""
    return {
        ChildKey("v1", "ConfigMap", name)
        for owner in owners(deployment, observed, planned)
        for name in typed(owner.get("spec", {}).get("template")).config_maps
    }


def owners(
    deployment: LLMDeployment, observed: Observed, planned: Mapping[ChildKey, Manifest]
) -> Iterator[Manifest]:
    """Yield the objects whose templates pods are, or will be, made from."""
    yield observed.workload(deployment.name)
    yield planned.get(workload_key(deployment.name), {})
    for replica_set in observed.replica_sets:
        if replica_set.get("spec", {}).get("replicas") or replica_set.get("status", {}).get("replicas"):
            yield replica_set
