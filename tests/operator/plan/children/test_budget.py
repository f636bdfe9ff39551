"""The PodDisruptionBudget of the engines."""

from typing import Any


def test_evictions_end_one_replica_at_a_time_and_never_spare_a_broken_one(
    planned: Any, manifest: Any
) -> None:
    goal = planned(manifest())

    spec = goal.child("PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert spec["selector"] == goal.child("Deployment")["spec"]["selector"]


def test_the_budget_may_be_changed(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(budget={"maxUnavailable": "50%"}))

    assert goal.child("PodDisruptionBudget")["spec"]["maxUnavailable"] == "50%"


def test_a_disabled_budget_is_deleted(planned: Any, manifest: Any) -> None:
    given = manifest()
    given["metadata"]["uid"] = "u-1"
    before = planned(given)

    after = planned(manifest(budget={"enabled": False}) | {"metadata": given["metadata"]}, before.observed)

    assert [key.kind for key in after.goal.delete] == ["PodDisruptionBudget"]
    assert "PodDisruptionBudget" not in {key.kind for key in after.goal.apply}
    assert after.template == before.template
