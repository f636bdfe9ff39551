"""The plan as a whole: the children of an LLMDeployment, and the pruning of those that it no longer has."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from llm_operator.observed import ChildKey, Observed
from llm_operator.plan import children
from llm_operator.plan.plan import PLANNERS

LABEL = "fairlead.dev/llmdeployment"
STRAY = ChildKey("v1", "Service", "smollm2-former")


def with_uid(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": {**manifest["metadata"], "uid": "u-1"}}


def existing(**metadata: Any) -> dict[str, Any]:
    owner = {"uid": "u-1", "controller": True}
    defaults = {"name": STRAY.name, "labels": {LABEL: "smollm2"}, "ownerReferences": [owner]}
    return {"apiVersion": STRAY.api_version, "kind": STRAY.kind, "metadata": defaults | metadata}


def test_children_are_keyed_owned_and_labeled(planned: Any, manifest: Any) -> None:
    apply = planned(with_uid(manifest())).goal.apply

    assert list(apply) == [
        ("v1", "ServiceAccount", "smollm2-engine"),
        ("v1", "Service", "smollm2-engine"),
        ("policy/v1", "PodDisruptionBudget", "smollm2-engine"),
        ("apps/v1", "Deployment", "smollm2-engine"),
    ]
    for child in apply.values():
        metadata = child["metadata"]
        assert metadata["namespace"] == "default"
        assert metadata["labels"][LABEL] == "smollm2"
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u-1", True, True)


def test_deletes_an_owned_child_that_is_not_planned(planned: Any, manifest: Any) -> None:
    goal = planned(with_uid(manifest()), Observed(children={STRAY: existing()})).goal

    assert goal.delete == (STRAY,)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": []}, id="without an owner"),
        pytest.param({"ownerReferences": [{"uid": "u-2", "controller": True}]}, id="of another owner"),
        pytest.param({"labels": {}}, id="without our label"),
        pytest.param({"labels": {LABEL: "other"}}, id="with the label of another LLMDeployment"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, id="being deleted already"),
    ],
)
def test_never_deletes_an_object(planned: Any, manifest: Any, metadata: dict[str, Any]) -> None:
    goal = planned(with_uid(manifest()), Observed(children={STRAY: existing(**metadata)})).goal

    assert goal.delete == ()


def test_each_planner_of_children_is_among_the_planners() -> None:
    modules = [
        import_module(f"{children.__name__}.{found.name}") for found in iter_modules(children.__path__)
    ]
    planners = [module for module in modules if hasattr(module, "plan")]
    assert len(planners) > 3
    assert all(module in PLANNERS for module in planners)
