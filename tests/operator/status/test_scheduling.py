"""The scheduler's messages in the user's terms."""

from typing import Any

import pytest
from llm_operator.status.messages import LONGEST_TEXT
from llm_operator.status.problems import problem_of
from llm_operator.status.scheduling import scheduling_problem

PREEMPTION = " preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
CLAIM = {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}]}


@pytest.mark.parametrize(
    ("message", "pod_spec", "reason", "expected"),
    [
        (
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu." + PREEMPTION,
            {},
            "Unschedulable",
            "none of 3 nodes takes the pod: 3 with too little free nvidia.com/gpu",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
            "no new claims to deallocate," + PREEMPTION,
            {"nodeSelector": {"gpu": "h200"}},
            "NodeSelectorMismatch",
            "none of 3 nodes takes the pod: 3 without the label gpu=h200",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
            {"nodeSelector": {"zone": "b", "gpu": "h200"}, "affinity": {"nodeAffinity": {"x": 1}}},
            "NodeSelectorMismatch",
            "none of 3 nodes takes the pod: 3 without the labels gpu=h200, zone=b, what its node affinity requires",
        ),
        (
            "0/3 nodes are available: 2 node(s) had untolerated taint {team: search}, 1 Insufficient cpu."
            + PREEMPTION,
            {},
            "UntoleratedTaint",
            "none of 3 nodes takes the pod: 2 with the taint team: search, which the pod does not tolerate "
            "(podTemplate.spec.tolerations); 1 with too little free cpu",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
            "1 Insufficient memory.",
            {},
            "Unschedulable",
            "none of 2 nodes takes the pod: 1 with too little free memory; 1 with the taint "
            "node-role.kubernetes.io/control-plane, which the pod does not tolerate (podTemplate.spec.tolerations)",
        ),
        (
            "0/2 nodes are available: 2 node(s) had untolerated taint(s).",
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            "UntoleratedTaint",
            "none of 2 nodes takes the pod: 2 with a taint that the pod does not tolerate "
            "(podTemplate.spec.tolerations; it tolerates nvidia.com/gpu)",
        ),
        (
            "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            CLAIM,
            "ClaimPending",
            "no volume is bound to the PersistentVolumeClaim weights yet",
        ),
        (
            'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
            CLAIM,
            "ClaimPending",
            "no volume is bound to the PersistentVolumeClaim weights yet: running PreBind plugin "
            '"VolumeBinding": binding volumes: context deadline exceeded',
        ),
        ("no nodes available to schedule pods", {}, "Unschedulable", "no nodes available to schedule pods"),
        (
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had volume node affinity conflict.",
            CLAIM,
            "Unschedulable",
            "none of 2 nodes takes the pod: 1 with too little free nvidia.com/gpu; "
            "1 without the volume of the claim weights, which is for other nodes",
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity." + PREEMPTION,
            CLAIM,
            "Unschedulable",
            "none of 1 nodes takes the pod: 1 without the volume of the claim weights, which is for other nodes",
        ),
        (
            "0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and "
            "ReadWriteOncePod access mode.",
            CLAIM,
            "VolumeInUse",
            "none of 2 nodes takes the pod: 2 while another pod has the volume of the claim weights, which is "
            "ReadWriteOncePod",
        ),
        (
            "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access "
            "mode already in-use by another pod. no new claims to deallocate," + PREEMPTION,
            CLAIM,
            "VolumeInUse",
            "none of 1 nodes takes the pod: 1 while another pod has the volume of the claim weights, which is "
            "ReadWriteOncePod",
        ),
    ],
)
def test_a_pod_that_no_node_takes_has_the_reason_of_most_nodes(
    message: str, pod_spec: dict[str, Any], reason: str, expected: str
) -> None:
    assert scheduling_problem(message, pod_spec) == (reason, expected)


@pytest.mark.parametrize("gap", ["\n", " ", "2 a, "])
def test_a_long_message_in_a_pods_status_is_cut_before_it_is_read(gap: str) -> None:
    message = "0/5000 nodes are available: 4999 Insufficient cpu, 1 other" + gap + "preemption: x" * 100_000
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = {"metadata": {}, "status": {"phase": "Pending", "conditions": [scheduled]}}
    found = problem_of(pod, {})
    assert found is not None and found.reason == "Unschedulable"
    assert len(found.message) <= LONGEST_TEXT + 100 and "\n" not in found.message


def test_numbers_without_end_in_what_a_container_printed_are_cut_before_they_are_read() -> None:
    ended = {"exitCode": 1, "message": "1" * 1_000_000}
    status = {"name": "engine", "ready": False, "state": {"terminated": ended}}
    pod = {"metadata": {}, "status": {"phase": "Running", "containerStatuses": [status]}}
    found = problem_of(pod, {})
    assert found is not None and found.reason == "CrashLoopBackOff" and len(found.message) <= LONGEST_TEXT
