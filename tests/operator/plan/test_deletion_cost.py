"""The costs of pods before a scale-down."""

from typing import Any

import pytest
from llm_operator.observed import Observed, workload_key
from llm_operator.plan.deletion_cost import changed_costs, is_scale_down
from llm_operator.plan.plan import Plan

COST = "controller.kubernetes.io/pod-deletion-cost"


def pod(name: str, address: str | None, cost: str | None = None, **metadata: Any) -> dict[str, Any]:
    annotations = {} if cost is None else {COST: cost}
    status = {} if address is None else {"podIP": address}
    return {"metadata": {"name": name, "annotations": annotations, **metadata}, "status": status}


def test_a_pod_costs_its_requests() -> None:
    pods = [pod("busy", "10.0.0.1"), pod("idle", "10.0.0.2", cost="7"), pod("new", "10.0.0.3")]

    assert changed_costs(pods, {"10.0.0.1": 5}) == {"busy": "5", "idle": "0"}


def test_a_cost_that_is_right_is_not_written() -> None:
    assert changed_costs([pod("busy", "10.0.0.1", cost="5")], {"10.0.0.1": 5}) == {}


def test_pods_without_an_address_and_those_that_end_have_no_cost() -> None:
    pods = [pod("pending", None), pod("ending", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z")]

    assert changed_costs(pods, {"10.0.0.1": 5}) == {}


@pytest.mark.parametrize(
    ("existing", "planned", "expected"),
    [(3, 2, True), (3, 3, False), (2, 3, False), (3, 0, False), (None, 1, False)],
)
def test_a_scale_down_leaves_some_replicas(existing: int | None, planned: int, expected: bool) -> None:
    key = workload_key("m")
    children = {} if existing is None else {key: {"spec": {"replicas": existing}}}
    observed = Observed(subject={"metadata": {"name": "m", "namespace": "default"}}, children=children)

    assert is_scale_down(Plan({key: {"spec": {"replicas": planned}}}), observed) == expected
    assert not is_scale_down(Plan({}), observed)
