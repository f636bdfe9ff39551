"""The pod template in force, against a real API server; the tests act as the Deployment's controller."""

import json
from typing import Any

import pytest
from kubernetes_client import STRATEGIC
from llm_operator.plan.pod.template_record import TemplateRecord
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


def engine(world: Any, name: str) -> dict[str, Any]:
    container = world.get("deployment", f"{name}-engine")["spec"]["template"]["spec"]["containers"][0]
    assert isinstance(container, dict)
    return container


def annotations(world: Any, name: str) -> dict[str, str]:
    found = world.get("deployment", f"{name}-engine")["metadata"]["annotations"]
    assert isinstance(found, dict)
    return found


def recorded_template(world: Any, name: str) -> dict[str, Any] | None:
    text = annotations(world, name)["fairlead.dev/pod-template"]
    return None if text == "{" else json.loads(text)


def retain(world: Any, name: str, revision: int) -> None:
    """Create the ReplicaSet of the Deployment's current template, as its controller does."""
    workload = world.get("deployment", f"{name}-engine")
    metadata = workload["metadata"]
    template = workload["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": f"r{revision}"}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
    kept = {**metadata["annotations"], "deployment.kubernetes.io/revision": str(revision)}
    world.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{metadata['name']}-r{revision}",
                "labels": labels,
                "annotations": kept,
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {**template, "metadata": {"labels": labels}},
            },
        }
    )


def test_a_reverted_spec_returns_to_the_template_of_its_replica_set(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(manifest(name))
    first = until(lambda: annotations(world, name))
    retain(world, name, 1)
    world.apply(manifest(name, engine={"maxModelLen": 512}))
    until(lambda: "--max-model-len=512" in engine(world, name)["args"])

    world.apply(manifest(name))

    until(lambda: annotations(world, name)["fairlead.dev/spec-hash"] == first["fairlead.dev/spec-hash"])
    assert annotations(world, name)["fairlead.dev/pod-template"] == first["fairlead.dev/pod-template"]


def upgrade(world: Any, name: str) -> None:
    """Give the Deployment another image and its record, as if an earlier release of the operator had rendered it."""
    workload = world.get("deployment", f"{name}-engine")
    metadata, template = workload["metadata"], workload["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "engine:0"
    record = TemplateRecord(template, metadata["annotations"]["fairlead.dev/spec-hash"])
    kept = {key: metadata[key] for key in ("name", "labels", "ownerReferences")}
    applied = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**kept, "annotations": record.annotations()},
        "spec": workload["spec"],
    }
    world.apply(applied, manager="fairlead")
    assert engine(world, name)["image"] == "engine:0"


@pytest.mark.more
def test_a_damaged_record_is_restored_from_the_live_template(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: annotations(world, name))
    upgrade(world, name)

    world.annotate("deployment", f"{name}-engine", {"fairlead.dev/pod-template": "{"})

    restored = until(lambda: recorded_template(world, name))
    assert restored["spec"]["containers"][0]["image"] == "engine:0"
    assert engine(world, name)["image"] == "engine:0"


@pytest.mark.more
def test_a_live_template_that_was_modified_with_its_record_is_rendered_anew(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(manifest(name))
    until(lambda: annotations(world, name))
    patch = {
        "metadata": {"annotations": {"fairlead.dev/pod-template": "{"}},
        "spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "evil:1"}]}}},
    }

    world.patch("deployment", f"{name}-engine", patch, content_type=STRATEGIC)

    restored = until(lambda: recorded_template(world, name))
    assert restored["spec"]["containers"][0]["image"] == "engine:1"
    until(lambda: engine(world, name)["image"] == "engine:1")


def test_a_deployment_of_an_earlier_release_keeps_its_template(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: annotations(world, name))
    upgrade(world, name)
    before = world.get("deployment", f"{name}-engine")["spec"]["template"]

    world.apply(manifest(name, replicas=2))

    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2)
    assert world.get("deployment", f"{name}-engine")["spec"]["template"] == before


@pytest.mark.more
def test_rolled_at_is_recorded_for_every_llmdeployment_that_is_annotated(
    world: Any, manifest: Any, name: str
) -> None:
    names = [f"{name[:40]}-{number}" for number in range(2)]
    for each in names:
        world.apply(manifest(each) | {"metadata": {"name": each, "labels": {"set": name}}})
        until(lambda each=each: annotations(world, each))

    world.kubectl(
        "annotate", "llmd", "-n", world.namespace, "-l", f"set={name}", "fairlead.dev/rolled-at=noon"
    )

    for each in names:
        until(lambda each=each: annotations(world, each).get("fairlead.dev/rolled-at") == "noon")


def test_a_template_that_is_too_large_to_record_becomes_a_condition(
    world: Any, manifest: Any, name: str
) -> None:
    large = [{"name": f"V{index}", "value": "x" * 4000} for index in range(70)]

    world.apply(manifest(name, engine={"env": large}))

    found = until(lambda: world.degraded(name, "InvalidSpec"))
    assert "bytes as JSON" in found["message"]
