"""The Deployment: rollouts, and the changes that replace no pod."""

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


def test_an_upgrade_of_the_operator_rolls_no_engine(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    after = planned(manifest(), before.observed, NEXT_RELEASE)

    assert after.template == before.template


def test_scaling_rolls_no_engine(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    scaled = planned(manifest(replicas=5), before.observed, NEXT_RELEASE)

    assert scaled.template == before.template
    assert scaled.child("Deployment")["spec"]["replicas"] == 5


def test_a_change_of_the_spec_takes_the_new_image(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    changed = planned(manifest(engine={"maxModelLen": 512}), before.observed, NEXT_RELEASE)

    assert changed.engine["image"] == "engine:2"


def test_an_image_in_the_spec_is_taken_at_once(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    changed = planned(manifest(engine={"image": "mine:3"}), before.observed, NEXT_RELEASE)

    assert changed.engine["image"] == "mine:3"
