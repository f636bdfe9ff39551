"""The administrator's policy for pods."""

from pathlib import Path
from typing import Any

import pytest
from llm_operator.api.pod_policy import read_pod_policy
from llm_operator.api.schema import SpecError
from llm_operator.settings import PodPolicy, Settings

PROFILES = {
    "sandbox": {"podTemplate": {"spec": {"runtimeClassName": "gvisor", "priorityClassName": "low"}}},
    "other": {},
}
POLICY = PodPolicy(
    priority_classes=("batch-*",),
    node_name=False,
    schedulers=(),
    runtime_classes=("nvidia",),
    annotations=("team.example.com/*",),
    images=("registry.example.com/*",),
)
SETTINGS = Settings(engine_image="engine:1", profiles=PROFILES, pod_policy=POLICY)
OWN_IMAGE = "registry.example.com/engine:2"


def pod(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": fields}}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (pod(priorityClassName="system-node-critical"), "spec.podTemplate.spec.priorityClassName"),
        (pod(nodeName="control-plane"), "spec.podTemplate.spec.nodeName"),
        (pod(schedulerName="mine"), "spec.podTemplate.spec.schedulerName"),
        (pod(runtimeClassName="gvisor"), "spec.podTemplate.spec.runtimeClassName"),
        ({"engine": {"image": "evil:1"}}, "spec.engine.image"),
        (
            pod(containers=[{"name": "engine", "image": "evil:1"}]),
            "spec.podTemplate.spec.containers[0].image",
        ),
        (
            pod(initContainers=[{"name": "model", "image": "e:1"}]),
            "spec.podTemplate.spec.initContainers[0].image",
        ),
        (
            pod(volumes=[{"name": "v", "image": {"reference": "evil:1"}}]),
            "spec.podTemplate.spec.volumes[0].image.reference",
        ),
        (
            {"podTemplate": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "host"}}}},
            "annotations",
        ),
        (
            {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "r"}}},
            "spec.serviceAccount.annotations",
        ),
        (
            pod(volumes=[{"name": "v", "projected": {"sources": [{"podCertificate": {}}]}}]),
            "volumes[0].projected",
        ),
    ],
)
def test_a_value_that_the_policy_does_not_allow_is_refused_with_its_path(
    planned: Any, manifest: Any, spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError) as refused:
        planned(manifest(**spec), settings=SETTINGS)

    assert path in refused.value.path
    assert "the operator's policy allows" in refused.value.problem


def test_allowed_values_and_those_of_profiles_are_taken(planned: Any, manifest: Any) -> None:
    given = manifest(
        profile="sandbox",
        engine={"image": OWN_IMAGE},
        podTemplate={
            "metadata": {"annotations": {"team.example.com/a": "b"}},
            "spec": {
                "priorityClassName": "batch-low",
                "volumes": [{"name": "v", "image": {"reference": OWN_IMAGE}}],
            },
        },
    )

    goal = planned(given, settings=SETTINGS)

    assert (goal.pod["runtimeClassName"], goal.pod["priorityClassName"]) == ("gvisor", "batch-low")
    assert goal.engine["image"] == OWN_IMAGE


def test_a_namespace_with_required_profiles_takes_no_spec_without_one_or_over_it(
    planned: Any, manifest: Any
) -> None:
    policy = PodPolicy(required_profiles={"default": ("sandbox",)})
    settings = Settings(engine_image="engine:1", profiles=PROFILES, pod_policy=policy)

    for spec in ({}, {"profile": "other"}):
        with pytest.raises(SpecError, match="sandbox"):
            planned(manifest(**spec), settings=settings)
    for value in (None, "runc"):
        with pytest.raises(SpecError, match="required profile"):
            planned(manifest(profile="sandbox", **pod(runtimeClassName=value)), settings=settings)
    assert planned(manifest(profile="sandbox"), settings=settings).pod["runtimeClassName"] == "gvisor"
    assert planned(manifest(namespace="other"), settings=settings).pod


def test_no_policy_changes_a_template(planned: Any, manifest: Any) -> None:
    given = pod(nodeName="n", priorityClassName="p", schedulerName="s")
    assert planned(manifest(**given)).pod["nodeName"] == "n"
    assert planned(manifest(), settings=SETTINGS).template == planned(manifest()).template


def test_an_unknown_field_of_a_policy_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("priorityClass: [a]")
    with pytest.raises(SpecError, match="priorityClass"):
        read_pod_policy(file)
