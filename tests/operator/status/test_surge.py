"""Rollouts that wait for what the former replicas keep: a GPU, or a volume for one node or one pod."""

from typing import Any

import pytest
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition
from llm_operator.observed import Observed, Warned, workload_key
from llm_operator.status.assess import assess

SPEC = {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}]}
IN_PLACE = "rollout.strategy: inPlace ends a replica before its successor starts"


def unschedulable(cause: str) -> dict[str, Any]:
    message = f"0/2 nodes are available: 2 {cause}. preemption: 0/2 nodes are available"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {
        "metadata": {"name": "new", "uid": "u"},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


WAITING = {
    "metadata": {"name": "new", "uid": "u"},
    "spec": {"nodeName": "node2"},
    "status": {"phase": "Pending"},
}


def degraded(pod: dict[str, Any], replicas: int, *warned: Warned) -> Condition:
    """Return the condition with `replicas` pods, of which one is wanted, and the first of which is ready."""
    status = {"observedGeneration": 1, "replicas": replicas, "readyReplicas": 1, "updatedReplicas": 1}
    workload = {
        "metadata": {"generation": 1},
        "status": status,
        "spec": {"template": {"spec": SPEC}},
    }
    observed = Observed(
        subject={"metadata": {"name": "smollm2", "namespace": "default"}},
        children={workload_key("smollm2"): workload},
        pods=(pod,),
        warnings={"u": warned},
    )
    (found,) = (
        entry
        for entry in assess(LLMDeploymentSpec(model=Model(uri="pvc://weights")), observed).conditions
        if entry.type == "Degraded"
    )
    return found


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("node(s) didn't match PersistentVolume's node affinity", "Unschedulable"),
        ("node(s) had volume node affinity conflict", "Unschedulable"),
        (
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            "VolumeInUse",
        ),
    ],
)
def test_a_successor_that_no_node_takes_for_its_volume_names_the_claim_and_the_strategy(
    cause: str, reason: str
) -> None:
    found = degraded(unschedulable(cause), replicas=2)

    assert found.reason == reason
    assert "the claim weights" in found.message and IN_PLACE in found.message


def test_a_successor_whose_volume_is_attached_to_another_node_names_the_claim_and_the_strategy() -> None:
    attached = Warned("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1"')

    found = degraded(WAITING, 2, attached)

    assert found.reason == "VolumeInUse"
    assert "the claim weights" in found.message and IN_PLACE in found.message


def test_without_a_former_replica_the_strategy_is_no_remedy() -> None:
    found = degraded(unschedulable("node(s) had volume node affinity conflict"), replicas=1)

    assert "the claim weights" in found.message and "inPlace" not in found.message


def test_a_successor_that_lacks_something_else_has_no_remedy() -> None:
    found = degraded(unschedulable("Insufficient cpu"), replicas=2)

    assert found.reason == "Unschedulable" and "inPlace" not in found.message
