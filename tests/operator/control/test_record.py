"""The comparison of a planned child with the one that exists, without a memory of the last apply."""

from typing import Any

import pytest
from llm_operator.control.record import Record, marked
from llm_operator.observed import ChildKey

KEY = ChildKey("v1", "Service", "a-engine")


def planned(**spec: Any) -> dict[str, Any]:
    owner = {"kind": "LLMDeployment", "name": "a", "uid": "1", "controller": True}
    return {"metadata": {"name": "a-engine", "ownerReferences": [owner]}, "spec": spec}


def created(child: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Return the object as the API server keeps it: with the mark of the apply, and with defaults."""
    applied = marked(child)
    return {**applied, "spec": {**applied["spec"], **defaults}, "status": {"replicas": 1}}


def test_a_restarted_operator_takes_a_child_with_defaults_as_applied() -> None:
    child = planned(selector={"app": "a"}, ports=[{"port": 8000}], empty=[])
    existing = created(child, ports=[{"port": 8000, "protocol": "TCP"}], clusterIP="10.0.0.1")
    del existing["spec"]["empty"]

    assert Record().is_settled(KEY, child, existing)


@pytest.mark.parametrize(
    "drift",
    [
        {"selector": {"app": "b"}},
        {"ports": []},
        {"ports": [{"port": 8001}]},
        {"ports": [{"port": 8000}, {"port": 9}]},
    ],
)
def test_a_changed_field_is_drift(drift: dict[str, Any]) -> None:
    child = planned(selector={"app": "a"}, ports=[{"port": 8000}])

    assert not Record().is_settled(KEY, child, created(child, **drift))


def test_a_field_that_is_planned_no_more_is_not_settled() -> None:
    before = planned(selector={"app": "a"}, type="ClusterIP")

    assert not Record().is_settled(KEY, planned(selector={"app": "a"}), created(before))


def shared(*owners: str, **metadata: Any) -> dict[str, Any]:
    labels = {"fairlead.dev/llmdeployment": ""}
    references = [{"kind": "LLMDeployment", "name": owner, "uid": owner} for owner in owners]
    return {"metadata": {"name": "cache", "labels": labels, "ownerReferences": references} | metadata}


def test_a_restarted_operator_takes_a_shared_child_with_further_owners_as_applied() -> None:
    assert Record().is_settled(KEY, shared("b"), shared("a", "b", annotations={"added": "by another"}))


@pytest.mark.parametrize("existing", [shared("a"), shared("a", "b", labels={})])
def test_a_shared_child_without_this_owner_or_a_planned_value_is_not_settled(
    existing: dict[str, Any],
) -> None:
    assert not Record().is_settled(KEY, shared("b"), existing)
