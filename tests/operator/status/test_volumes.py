"""Volumes on nodes where no replica can run."""

from typing import Any

import pytest
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition
from llm_operator.observed import Observed, claim_key, workload_key
from llm_operator.status.assess import assess
from llm_operator.status.volumes import claims_in_question

SELECTED = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node1"}}}
OTHER_NODE = "node(s) didn't match PersistentVolume's node affinity"


def unscheduled(cause: str) -> dict[str, Any]:
    message = f"0/2 nodes are available: 1 Insufficient example.com/gpu, 1 {cause}."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"metadata": {"name": "p", "uid": "u"}, "status": {"phase": "Pending", "conditions": [condition]}}


def observed(pod: dict[str, Any], replicas: int = 1, **given: Any) -> Observed:
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}]
    workload = {
        "metadata": {"generation": 1},
        "status": {"observedGeneration": 1, "replicas": replicas},
        "spec": {"template": {"spec": {"volumes": volumes}}},
    }
    children = {workload_key("smollm2"): workload} | given.pop("children", {})
    subject = {"metadata": {"name": "smollm2", "namespace": "default"}}
    return Observed(subject=subject, children=children, pods=(pod,), **given)


def degraded(state: Observed) -> Condition:
    spec = LLMDeploymentSpec(model=Model(uri="pvc://weights"))
    (found,) = (each for each in assess(spec, state).conditions if each.type == "Degraded")
    return found


def test_a_volume_on_a_node_without_gpus_is_named_with_its_claim_node_and_remedy() -> None:
    created = degraded(observed(unscheduled(OTHER_NODE), children={claim_key("weights"): SELECTED}))
    own = degraded(observed(unscheduled(OTHER_NODE), claims={"weights": SELECTED}))
    unknown = degraded(observed(unscheduled(OTHER_NODE)))

    assert created.reason == own.reason == unknown.reason == "Unschedulable"
    assert "the claim weights has its volume on node1; delete the claim weights" in created.message
    assert "the claim weights has its volume on node1; make room for the pod" in own.message
    assert "the volume of the claim weights, which is for other nodes; make room" in unknown.message


def test_during_a_rollout_the_claim_that_a_replica_uses_is_not_to_be_deleted() -> None:
    state = observed(unscheduled(OTHER_NODE), replicas=2, children={claim_key("weights"): SELECTED})

    found = degraded(state)

    assert "has its volume on node1; rollout.strategy: inPlace" in found.message
    assert "delete" not in found.message


@pytest.mark.parametrize(
    ("cause", "children", "claims"),
    [
        (OTHER_NODE, {}, {"weights"}),
        ("node(s) had volume node affinity conflict", {}, {"weights"}),
        (OTHER_NODE, {claim_key("weights"): SELECTED}, set()),
        ("Insufficient cpu", {}, set()),
    ],
)
def test_claims_of_others_are_read_only_while_their_volumes_keep_pods_from_nodes(
    cause: str, children: dict[Any, Any], claims: set[str]
) -> None:
    assert claims_in_question(observed(unscheduled(cause), children=children)) == claims
