"""The operator's metrics of LLMDeployments."""

from collections.abc import Iterator

import pytest
from llm_operator import metrics
from llm_operator.api.status import Condition, Start, Status
from msgspec.structs import replace

from engine_server.contract.cluster.api import Key

KEY = Key("team", "m")
LABELS = {"namespace": "team", "name": "m", "model": "team/m"}
READY = Condition("Ready", "False", "Starting", "", "2026-01-01T00:00:00Z")


@pytest.fixture(autouse=True)
def reported() -> Iterator[None]:
    status = Status(ready_replicas=1, conditions=(READY,), start=Start("m-0", scheduled=2, loaded=9))
    metrics.STATUS.put(KEY, 3, status, True)
    yield
    metrics.STATUS.remove(KEY)


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"fairlead_operator_{name}", {**LABELS, **labels})


def test_replicas_are_the_desired_and_the_ready_ones() -> None:
    assert (value("desired_replicas"), value("ready_replicas")) == (3, 1)


def test_a_condition_has_one_series_whose_label_is_the_current_status() -> None:
    assert value("condition", condition="Ready", status="False") == 1

    metrics.STATUS.put(KEY, 3, Status(conditions=(replace(READY, status="True"),)), False)

    assert value("condition", condition="Ready", status="True") == 1
    assert value("condition", condition="Ready", status="False") is None


def test_an_outdated_template_is_one_and_there_is_no_series_before_there_is_a_template() -> None:
    assert value("template_outdated") == 1

    metrics.STATUS.put(KEY, 3, Status(), False)
    assert value("template_outdated") == 0

    metrics.STATUS.put(KEY, 3, Status(), None)
    assert value("template_outdated") is None


def test_only_phases_of_a_start_that_have_ended_have_a_series() -> None:
    phases = {phase: value("start_seconds", phase=phase) for phase in metrics.START_PHASES}
    assert {phase: seconds for phase, seconds in phases.items() if seconds is not None} == {
        "scheduled": 2,
        "loaded": 9,
    }


def test_a_deleted_object_has_no_series() -> None:
    metrics.STATUS.remove(KEY)
    assert value("desired_replicas") is None
    assert value("condition", condition="Ready", status="False") is None
