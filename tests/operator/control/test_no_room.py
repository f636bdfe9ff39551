"""The operator against a real API server, for a namespace with more objects than it keeps."""

from collections.abc import Iterator
from typing import Any

import pytest
from llm_operator.control.watching import room
from operators import Operator
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module")
def operator(world: Any, run_operator: Any) -> Iterator[Operator]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "NAMESPACE_BYTES", 0)
        with run_operator(world.cluster_wide_account(), f"--lease-namespace={world.namespace}") as running:
            yield running


def test_an_llmdeployment_is_carried_out_scaled_and_reported(
    world: Any, manifest: Any, name: str, operator: Operator
) -> None:
    world.apply(manifest(name, replicas=2, budget={"enabled": True}))
    until(lambda: world.find("deployment", f"{name}-engine"))
    until(lambda: world.find("pdb", f"{name}-engine"))
    until(lambda: world.reason(name, "Ready") == "Starting")
    until(lambda: operator.metric("fairlead_operator_objects_not_kept", namespace=world.namespace) > 3)

    world.kubectl("scale", f"llmd/{name}", "-n", world.namespace, "--replicas=3")
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 3)
    counts = {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3}
    generation = world.get("deployment", f"{name}-engine")["metadata"]["generation"]
    world.set_status("deployment", f"{name}-engine", {"observedGeneration": generation, **counts})
    until(lambda: world.reason(name, "Ready") == "ReplicasReady")

    world.apply(manifest(name, replicas=3, budget={"enabled": False}))
    until(lambda: world.find("pdb", f"{name}-engine") is None)


def test_an_orphan_with_the_name_of_a_child_is_adopted(world: Any, manifest: Any, name: str) -> None:
    labels = {"fairlead.dev/llmdeployment": name}
    orphan = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": f"{name}-engine", "labels": labels},
    }
    world.apply(orphan)
    world.apply(manifest(name))
    until(lambda: world.get("serviceaccount", f"{name}-engine")["metadata"].get("ownerReferences"))
    until(lambda: world.find("deployment", f"{name}-engine"))
