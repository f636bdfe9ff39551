"""Starts of autoscaled replicas: Ready while one is waited for, and a start that is given up at its deadline."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.api.sections.model import Model
from llm_operator.api.sections.rollout import Rollout
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Status
from llm_operator.observed import Fetch, Observed, workload_key
from llm_operator.status.assess import assess
from llm_operator.status.waking import give_up_after

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEADLINE = 600
LOADING = {
    "metadata": {"name": "p"},
    "status": {"containerStatuses": [{"name": "engine", "ready": False, "state": {"running": {}}}]},
}
PENDING = {
    "metadata": {"name": "p"},
    "status": {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            }
        ]
    },
}
NO_IMAGE = {
    "metadata": {"name": "p"},
    "status": {
        "containerStatuses": [
            {
                "name": "engine",
                "ready": False,
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            }
        ]
    },
}


def spec_of(replicas: int, least: int) -> LLMDeploymentSpec:
    return LLMDeploymentSpec(
        model=Model(uri="a/b"),
        replicas=replicas,
        autoscaling=Autoscaling(min=least, max=3),
        rollout=Rollout(progress_deadline_seconds=DEADLINE),
    )


class Life:
    """An LLMDeployment whose status is assessed again and again, each time from the one before."""

    def __init__(self, least: int = 0) -> None:
        self.least = least
        self.generation = 1
        self.uri = "a/b"
        self.status: dict[str, Any] = {}
        self.paused = "false"
        self.fetch: Fetch | None = None
        self.templated_at = "2026-01-01T00:00:00Z"

    def observe(self, seconds: float, replicas: int, *pods: dict[str, Any], ready: int = 0) -> Observed:
        counts = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": ready}
        complete = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
        workload = {
            "metadata": {"generation": 1},
            "status": {"observedGeneration": 1, **counts, "conditions": [complete]},
        }
        # A change of the number is a change of the spec.
        self.generation += 1
        metadata = {
            "name": "m",
            "namespace": "default",
            "generation": self.generation,
            "annotations": {"fairlead.dev/paused": self.paused},
        }
        spec = {"model": {"uri": self.uri}, "replicas": replicas}
        return Observed(
            subject={"metadata": metadata, "spec": spec, "status": self.status},
            children={workload_key("m"): workload},
            pods=pods,
            replica_sets=({"metadata": {"name": "m", "uid": "u", "creationTimestamp": self.templated_at}},),
            fetch=self.fetch,
            now=NOON + timedelta(seconds=seconds),
        )

    def assess(self, seconds: float, replicas: int, *pods: dict[str, Any], ready: int = 0) -> Status:
        observed = self.observe(seconds, replicas, *pods, ready=ready)
        found = assess(spec_of(replicas, self.least), observed)
        self.status = found.as_manifest()
        return found


def ready_of(status: Status) -> tuple[str, str]:
    (found,) = (each for each in status.conditions if each.type == "Ready")
    return found.status, found.reason


@pytest.mark.parametrize("pod", [LOADING, PENDING])
def test_a_deployment_that_is_woken_stays_ready(pod: dict[str, Any]) -> None:
    life = Life()
    assert ready_of(life.assess(0, 0)) == ("True", "ScaledToZero")

    assert ready_of(life.assess(1, 1)) == ("True", "Waking")
    assert ready_of(life.assess(2, 1, pod)) == ("True", "Waking")
    assert ready_of(life.assess(300, 1, ready=1)) == ("True", "ReplicasReady")


def test_a_start_that_only_a_person_can_help_is_not_ready() -> None:
    assert ready_of(Life().assess(1, 1, NO_IMAGE)) == ("False", "ImagePullBackOff")


def test_a_start_is_given_up_at_the_deadline_and_its_reason_is_kept_at_zero() -> None:
    life = Life()
    assert life.assess(0, 1, PENDING).failed_start is None
    assert life.assess(DEADLINE - 1, 1, PENDING).failed_start is None

    failed = life.assess(DEADLINE, 1, PENDING)
    at_zero = life.assess(DEADLINE + 5, 0)

    assert failed.failed_start is not None and failed.failed_start == at_zero.failed_start
    assert (failed.failed_start.time, failed.failed_start.reason, failed.failed_start.count) == (
        "2026-01-01T12:10:00Z",
        "Unschedulable",
        1,
    )
    assert ready_of(failed) == ready_of(at_zero) == ("False", "StartFailed")
    assert at_zero.starting_since is None


def test_failures_in_a_row_are_counted_and_a_success_ends_the_count() -> None:
    life = Life()
    for number in range(3):
        life.assess(number * 5000, 1, PENDING)
        failed = life.assess(number * 5000 + DEADLINE, 1, PENDING)
        assert failed.failed_start is not None and failed.failed_start.count == number + 1
        life.assess(number * 5000 + DEADLINE + 5, 0)

    assert life.assess(20000, 1, ready=1).failed_start is None
    assert ready_of(life.assess(20100, 0)) == ("True", "ScaledToZero")


def test_another_pod_template_has_the_whole_deadline() -> None:
    life = Life()
    life.assess(0, 1, PENDING)
    life.templated_at = "2026-01-01T12:09:00Z"

    assert life.assess(DEADLINE, 1, PENDING).failed_start is None
    assert life.assess(DEADLINE + 540, 1, PENDING).failed_start is not None


def test_the_time_in_which_a_pod_fetches_the_model_does_not_count() -> None:
    life = Life()
    fetching = {
        "metadata": {"name": "p"},
        "status": {"initContainerStatuses": [{"name": "model", "state": {"running": {}}}]},
    }
    assert life.assess(DEADLINE, 1, fetching).starting_since is None
    assert life.assess(5 * DEADLINE, 1, fetching).failed_start is None

    life.assess(5 * DEADLINE + 1, 1, LOADING)
    assert life.assess(6 * DEADLINE + 1, 1, LOADING).failed_start is not None


def test_a_minimum_without_a_ready_replica_is_not_ready() -> None:
    assert ready_of(Life(least=1).assess(1, 1, PENDING)) == ("False", "Unschedulable")
    assert ready_of(Life(least=1).assess(1, 2, PENDING)) == ("True", "Waking")


def test_another_spec_starts_at_once() -> None:
    life = Life()
    life.assess(0, 1, PENDING)
    life.assess(DEADLINE, 1, PENDING)

    life.uri = "a/c"

    assert ready_of(life.assess(DEADLINE + 5, 0)) == ("True", "ScaledToZero")


def test_readiness_restarts_the_deadline() -> None:
    life = Life()
    life.assess(0, 1, PENDING)
    life.assess(DEADLINE - 1, 1, ready=1)

    assert life.assess(DEADLINE + 1, 1, PENDING).failed_start is None


def test_a_minimum_is_not_given_up() -> None:
    life = Life(least=1)
    life.assess(0, 1, PENDING)

    assert life.assess(10 * DEADLINE, 1, PENDING).failed_start is None


def test_neither_a_download_nor_a_pause_is_a_start() -> None:
    downloading, paused = Life(), Life()
    downloading.fetch, paused.paused = Fetch(), "true"
    for life in (downloading, paused):
        life.assess(0, 1)

        assert life.assess(10 * DEADLINE, 1).failed_start is None


def test_an_operator_looks_again_at_the_deadline() -> None:
    life = Life()
    spec = spec_of(1, 0)
    started = life.assess(0, 1, PENDING)
    assert give_up_after(spec, started, life.observe(100, 1, PENDING)) == DEADLINE - 100

    failed = life.assess(DEADLINE, 1, PENDING)

    assert give_up_after(spec, failed, life.observe(DEADLINE, 1, PENDING)) is None
