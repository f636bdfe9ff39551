"""The Deployment: replicas, image and rollout."""

from typing import Any

import pytest
from llm_operator.settings import Settings

NEXT_RELEASE = Settings(engine_image="engine:2", version="9.9.9")


@pytest.mark.parametrize(("strategy", "surge", "unavailable"), [("surge", 1, 0), ("inPlace", 0, 1)])
def test_the_strategy_sets_surge_and_unavailability(
    planned: Any, manifest: Any, strategy: str, surge: int, unavailable: int
) -> None:
    workload = planned(manifest(rollout={"strategy": strategy})).child("Deployment")["spec"]

    assert workload["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": unavailable}
    assert workload["progressDeadlineSeconds"] == 1800


def test_the_fields_of_the_rollout_override_the_strategy(planned: Any, manifest: Any) -> None:
    rollout = {"strategy": "inPlace", "maxSurge": "25%", "maxUnavailable": 0, "progressDeadlineSeconds": 60}

    workload = planned(manifest(rollout=rollout)).child("Deployment")["spec"]

    assert workload["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}
    assert workload["progressDeadlineSeconds"] == 60


def test_an_image_in_the_spec_is_taken_at_once(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    changed = planned(manifest(engine={"image": "mine:3"}), before.observed, NEXT_RELEASE)

    assert changed.engine["image"] == "mine:3"
