"""Pruning of children that are not planned any more, against a real API server."""

from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


def stray(world: Any, owner_name: str, **metadata: Any) -> dict[str, Any]:
    """Return a ServiceAccount that looks like a child of an LLMDeployment from an earlier release."""
    owner = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "name": owner_name,
        "uid": world.get("llmd", owner_name)["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    defaults = {
        "name": f"{owner_name}-former",
        "labels": {"fairlead.dev/llmdeployment": owner_name},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": defaults | metadata}


def test_prunes_owned_children_that_are_not_planned_and_nothing_else(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Ready"))
    kept = [
        stray(world, name, name=f"{name}-unowned", ownerReferences=[]),
        stray(world, name, name=f"{name}-unlabeled", labels={}),
    ]
    world.apply(*kept)

    world.apply(stray(world, name))

    until(lambda: f"{name}-former" not in world.names("serviceaccount"))
    assert {f"{name}-engine", f"{name}-unowned", f"{name}-unlabeled"} <= world.names("serviceaccount")


def test_each_child_that_is_created_changed_or_deleted_is_a_line_in_the_log(
    world: Any, manifest: Any, name: str, operator: Any
) -> None:
    def logged() -> list[str]:
        key = f"{world.namespace}/{name}: "
        return [line.partition(key)[2] for line in operator.log.splitlines() if key in line]

    world.apply(manifest(name))
    until(lambda: f"{name}-engine" in world.names("pdb"))
    until(lambda: f"created PodDisruptionBudget {name}-engine" in logged())

    world.apply(manifest(name, replicas=2, budget={"enabled": False}))

    until(lambda: f"{name}-engine" not in world.names("pdb"))
    until(lambda: f"changed Deployment {name}-engine" in logged())
    deleted = f"deleted PodDisruptionBudget {name}-engine, which is not planned any more"
    until(lambda: deleted in logged())
    assert len(logged()) == len(set(logged()))


def test_prunes_nothing_while_the_spec_is_invalid(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, podTemplate={"spec": {"serviceAccountName": "admin"}}))
    until(lambda: world.degraded(name, "InvalidSpec"))
    world.apply(stray(world, name))
    world.apply(manifest(name, replicas=2, podTemplate={"spec": {"serviceAccountName": "admin"}}))
    until(lambda: world.observed_generation(name) == 2)
    assert f"{name}-former" in world.names("serviceaccount")

    world.apply(manifest(name))

    until(lambda: f"{name}-former" not in world.names("serviceaccount"))
