"""The user's podTemplate over the operator's."""

from typing import Any

import pytest
from llm_operator.api.schema import SpecError
from llm_operator.settings import Settings

CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_a_pod_template_is_merged_over_the_operators(planned: Any, manifest: Any, environment: Any) -> None:
    goal = planned(
        manifest(
            podTemplate={
                "metadata": {"annotations": {"a": "b"}},
                "spec": {
                    "nodeSelector": {"gpu": "h200"},
                    "terminationGracePeriodSeconds": 99,
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                    "containers": [
                        {"name": "engine", "imagePullPolicy": "Always", "env": [{"name": "X", "value": "y"}]},
                        {"name": "sidecar", "image": "s", "securityContext": CONFINED},
                    ],
                },
            }
        )
    )

    assert {"a": "b"}.items() < goal.template["metadata"]["annotations"].items()
    assert goal.template["metadata"]["labels"]["fairlead.dev/llmdeployment"] == "smollm2"
    assert goal.pod["nodeSelector"] == {"gpu": "h200"}
    assert goal.pod["terminationGracePeriodSeconds"] == 99
    assert [container["name"] for container in goal.pod["containers"]] == ["engine", "sidecar"]
    assert goal.engine["imagePullPolicy"] == "Always" and goal.engine["image"] == "engine:1"
    assert environment(goal.engine)["X"] == "y" and "HOME" in environment(goal.engine)
    (shm,) = (volume for volume in goal.pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_tolerations_are_added_to_the_operators(planned: Any, manifest: Any) -> None:
    own = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    spot = {"key": "spot", "operator": "Exists"}

    goal = planned(manifest(resources={"gpu": 1}, podTemplate={"spec": {"tolerations": [own, spot]}}))

    assert goal.pod["tolerations"] == [own, spot]


def test_null_removes_the_operators_tolerations(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(resources={"gpu": 1}, podTemplate={"spec": {"tolerations": None}}))

    assert "tolerations" not in goal.pod


@pytest.mark.parametrize("overlay", [{}, {"spec": None}, {"metadata": None, "spec": {}}])
def test_an_empty_pod_template_changes_nothing(planned: Any, manifest: Any, overlay: dict[str, Any]) -> None:
    assert planned(manifest(podTemplate=overlay)).template == planned(manifest()).template


def test_null_in_a_pod_template_removes_a_field(planned: Any, manifest: Any) -> None:
    overlay = {"spec": {"containers": [{"name": "engine", "lifecycle": None}]}}

    goal = planned(manifest(podTemplate=overlay))

    assert "lifecycle" not in goal.engine


@pytest.mark.parametrize(
    ("pod_spec", "field"),
    [
        ({"serviceAccountName": "admin"}, "serviceAccountName"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"automountServiceAccountToken": None}, "automountServiceAccountToken"),
        ({"serviceAccountName": None}, "serviceAccountName"),
        ({"containers": [{"image": "x"}]}, r"containers\[0\]\.name: this field is required"),
        (
            {"containers": [{"name": "engine", "ports": [{}]}]},
            r"containers\[0\]\.ports\[0\]\.containerPort: is",
        ),
        ({"containers": "engine"}, "containers: expected `array`"),
        ({"securityContext": "none"}, "securityContext: expected an object"),
        ({"containers": None}, "containers: the container engine cannot be removed"),
        (
            {"containers": [{"name": "engine", "image": None}]},
            r"containers\[engine\]\.image: this field is required",
        ),
        ({"containers": [{"name": "sidecar"}]}, r"containers\[sidecar\]\.image: this field is required"),
        ({"volumes": None}, r"containers\[engine\]\.volumeMounts: there is no volume tmp"),
        (
            {"volumes": [{"name": "tmp", "emptyDir": None}]},
            r"volumes\[tmp\]: a volume is of exactly one type",
        ),
        (
            {"volumes": [{"name": "own", "projected": {"sources": 5}}]},
            r"volumes\[\d\]\.projected\.sources: Expected `array \| null`, got `int`",
        ),
    ],
)
def test_a_pod_template_is_refused_by_field(
    planned: Any, manifest: Any, pod_spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError, match=rf"spec\.podTemplate\.spec\.{field}"):
        planned(manifest(podTemplate={"spec": pod_spec}))


def test_a_pod_template_has_only_metadata_and_spec(planned: Any, manifest: Any) -> None:
    with pytest.raises(SpecError, match=r"spec\.podTemplate\.status: there is no such field"):
        planned(manifest(podTemplate={"status": {}}))


def test_a_pod_template_cannot_take_pods_out_of_the_service(planned: Any, manifest: Any) -> None:
    labels = {"fairlead.dev/llmdeployment": "other"}

    with pytest.raises(SpecError, match="belongs to the operator"):
        planned(manifest(podTemplate={"metadata": {"labels": labels}}))


@pytest.mark.parametrize("labels", [None, {"fairlead.dev/llmdeployment": None}])
def test_null_does_not_remove_the_labels_by_which_pods_are_selected(
    planned: Any, manifest: Any, labels: dict[str, Any] | None
) -> None:
    with pytest.raises(SpecError, match=r"spec\.podTemplate\.metadata\.labels"):
        planned(manifest(podTemplate={"metadata": {"labels": labels}}))


def test_null_removes_what_pods_can_do_without(planned: Any, manifest: Any) -> None:
    overlay = {
        "metadata": {"annotations": None},
        "spec": {
            "initContainers": None,
            "containers": [{"name": "engine", "env": None, "startupProbe": None}],
        },
    }

    goal = planned(manifest(podTemplate=overlay))

    assert "initContainers" not in goal.pod
    assert not {"env", "startupProbe"} & goal.engine.keys()


def test_an_operator_may_allow_a_service_account(planned: Any, manifest: Any) -> None:
    given = manifest(podTemplate={"spec": {"serviceAccountName": "mine"}})

    goal = planned(given, settings=Settings(engine_image="e", allow_service_account=True))

    assert goal.pod["serviceAccountName"] == "mine"
