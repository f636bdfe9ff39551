"""Warnings about pods whose containers are not created, in the words of kubelet, attach controller and runtimes."""

from typing import Any

import pytest
from llm_operator.api.spec import parse
from llm_operator.observed import Observed, Warned, workload_key
from llm_operator.status.assess import assess
from llm_operator.status.creation import creation_problem, uncreated

from engine_server.contract.cluster.reasons import needs_person

FILES = {
    "name": "files",
    "projected": {
        "sources": [
            {"configMap": {"name": "templates", "items": [{"key": "t", "path": "0"}]}},
            {"secret": {"name": "keys", "items": [{"key": "k", "path": "1"}]}},
        ]
    },
}
TOKEN = {"name": "token", "secret": {"secretName": "hub", "items": [{"key": "t", "path": "t"}]}}
MODELS = {"name": "models", "persistentVolumeClaim": {"claimName": "weights"}}
SPEC = {"volumes": [FILES, TOKEN, MODELS]}


def set_up(volume: str, problem: str) -> str:
    return f'MountVolume.SetUp failed for volume "{volume}" : {problem}'


@pytest.mark.parametrize(
    ("warned", "reason", "expected"),
    [
        (
            ("FailedMount", set_up("files", 'configmap "templates" not found')),
            "ConfigMapNotFound",
            "there is no ConfigMap templates",
        ),
        (
            ("FailedMount", set_up("token", 'secret "hub" not found')),
            "SecretNotFound",
            "there is no Secret hub",
        ),
        (
            ("FailedMount", set_up("files", "configmap references non-existent config key: t")),
            "KeyNotFound",
            "the ConfigMap templates has no key t",
        ),
        (
            ("FailedMount", set_up("token", "references non-existent secret key: t")),
            "KeyNotFound",
            "the Secret hub has no key t",
        ),
        (
            ("FailedMount", set_up("other", "[references non-existent secret key: t, x]")),
            "KeyNotFound",
            "a Secret of the pod has no key t",
        ),
        (
            (
                "FailedCreatePodSandBox",
                "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: "
                'no runtime for "kata" is configured',
            ),
            "RuntimeHandlerNotFound",
            "the node has no runtime kata, which the runtime class of the pod (podTemplate.spec) asks for",
        ),
        (
            (
                "FailedCreatePodSandBox",
                "failed to find runtime handler kata from runtime list map[runc:0xc0]",
            ),
            "RuntimeHandlerNotFound",
            "the node has no runtime kata, which the runtime class of the pod (podTemplate.spec) asks for",
        ),
        (
            ("FailedCreatePodSandBox", "plugin type=cni: connection refused"),
            "FailedCreatePodSandBox",
            "plugin type=cni: connection refused",
        ),
        (
            ("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already used'),
            "VolumeInUse",
            "the volume of the claim weights is in use on another node: "
            'Multi-Attach error for volume "pvc-1" Volume is already used',
        ),
        (
            ("FailedAttachVolume", 'AttachVolume.Attach failed for volume "pvc-1" : rpc error'),
            "FailedAttachVolume",
            "the volume of the claim weights cannot be mounted: "
            'AttachVolume.Attach failed for volume "pvc-1" : rpc error',
        ),
        (
            ("FailedMount", set_up("pvc-1", "mount failed: exit status 32")),
            "FailedMount",
            'the volume of the claim weights cannot be mounted: MountVolume.SetUp failed for volume "pvc-1" : '
            "mount failed: exit status 32",
        ),
    ],
)
def test_a_warning_names_the_object_that_the_pod_waits_for(
    warned: tuple[str, str], reason: str, expected: str
) -> None:
    assert creation_problem(Warned(*warned), SPEC) == (reason, expected)


def test_a_warning_about_something_else_is_no_problem() -> None:
    assert creation_problem(Warned("Unhealthy", 'secret "x" not found'), SPEC) is None


@pytest.mark.parametrize(
    ("reason", "waits_for_person"),
    [
        ("ConfigMapNotFound", True),
        ("KeyNotFound", True),
        ("RuntimeHandlerNotFound", True),
        ("FailedAttachVolume", False),
        ("FailedMount", False),
        ("FailedCreatePodSandBox", False),
    ],
)
def test_what_may_pass_needs_no_person(reason: str, waits_for_person: bool) -> None:
    assert needs_person(reason) is waits_for_person


def pod(uid: str = "u", **changes: Any) -> dict[str, Any]:
    container = {"name": "engine", "ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
    status = {"phase": "Pending", "containerStatuses": [container]}
    return {"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": "a"}, "status": status} | changes


RUNNING = {"name": "engine", "state": {"running": {}}}
READY_TO_START = {"type": "PodReadyToStartContainers", "status": "True"}


@pytest.mark.parametrize(
    "other",
    [
        pod(spec={}),
        pod(metadata={"uid": "u", "deletionTimestamp": "now"}),
        pod(status={"phase": "Running", "containerStatuses": [RUNNING]}),
        pod(status={"phase": "Pending", "initContainerStatuses": [RUNNING]}),
        # Its image is being pulled.
        pod(status={"phase": "Pending", "conditions": [READY_TO_START]}),
        pod(
            status={
                "phase": "Pending",
                "containerStatuses": [{"name": "engine", "lastState": {"terminated": {}}}],
            }
        ),
    ],
)
def test_only_pods_with_a_node_and_without_any_container_are_asked_about(other: dict[str, Any]) -> None:
    stuck = pod()
    assert uncreated([other, stuck]) == [stuck]


def test_the_condition_has_what_needs_a_person_first_and_no_summary_of_the_kubelet(manifest: Any) -> None:
    subject = manifest(engine={"files": [{"path": "/opt/t", "configMap": {"name": "templates", "key": "t"}}]})
    template = {"spec": {"template": {"spec": SPEC}}, "metadata": {}}
    warnings = (
        Warned("FailedMount", "Unable to attach or mount volumes: unmounted volumes=[files]: timed out"),
        Warned(
            "FailedMount",
            set_up("files", "failed to sync configmap cache: timed out waiting for the condition"),
        ),
        Warned("FailedMount", set_up("pvc-1", "mount failed")),
        Warned("FailedMount", set_up("files", 'configmap "templates" not found')),
    )
    observed = Observed(
        subject=subject,
        children={workload_key("smollm2"): template},
        pods=(pod(),),
        warnings={"u": warnings, "another": (Warned("FailedMount", "of a pod that is gone"),)},
    )

    conditions = {each.type: each for each in assess(parse(subject).spec, observed).conditions}

    assert conditions["Ready"].reason == conditions["Degraded"].reason == "ConfigMapNotFound"
    first, _, rest = conditions["Degraded"].message.partition("; ")
    assert first == "there is no ConfigMap templates"
    assert "weights" in rest and "timed out" not in rest and "gone" not in rest
