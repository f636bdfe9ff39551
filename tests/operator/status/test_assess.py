"""Conditions: what people read when they ask how it goes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from llm_operator.observed import Observed
from llm_operator.status.assess import Condition, Status, status
from llm_operator.status.problems import Problem

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def workload(
    replicas: int = 0,
    ready: int = 0,
    updated: int | None = None,
    stale: bool = False,
    conditions: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "status": {
            "observedGeneration": 1 if stale else 2,
            "replicas": replicas,
            "readyReplicas": ready,
            "updatedReplicas": replicas if updated is None else updated,
            "conditions": conditions or [],
        },
    }


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def engine(**state: Any) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "engine", "ready": False, **state}])


def fetch(**state: Any) -> dict[str, Any]:
    waiting = {"name": "engine", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    return pod(
        initContainerStatuses=[{"name": "model", "ready": False, **state}], containerStatuses=[waiting]
    )


def crashed(message: str, code: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {
        "state": {
            "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
        },
        "lastState": {"terminated": {"exitCode": code, "reason": reason, "message": message}},
    }


def reported(wanted: int, deployment: dict[str, Any] | None, *pods: dict[str, Any], **more: Any) -> Status:
    children = {"Deployment": deployment} if deployment is not None else {}
    return status("smollm2", 7, wanted, Observed(children=children, pods=pods, now=NOON, **more))


def find(report: Status, kind: str) -> Condition | None:
    return next((condition for condition in report.conditions if condition.type == kind), None)


def told(report: Status, kind: str) -> tuple[str, str]:
    condition = find(report, kind)
    assert condition is not None
    return condition.status, condition.reason


def test_before_anything_is_there() -> None:
    report = reported(2, None)
    assert told(report, "Ready") == ("False", "Starting")
    assert told(report, "Progressing") == ("True", "RollingOut")
    assert told(report, "Degraded") == ("False", "AsExpected")
    assert (report.observed_generation, report.replicas, report.ready_replicas) == (7, 0, 0)
    assert report.selector == "app.kubernetes.io/name=fairlead-engine,fairlead.dev/llmdeployment=smollm2"


def test_all_replicas_ready() -> None:
    report = reported(2, workload(2, ready=2))
    assert told(report, "Ready") == ("True", "ReplicasReady")
    assert told(report, "Progressing") == ("False", "Complete")


def test_one_replica_of_two_answers() -> None:
    report = reported(2, workload(2, ready=1))
    assert told(report, "Ready") == ("True", "ReplicasReady")
    assert told(report, "Progressing") == ("True", "RollingOut")
    assert report.conditions[0].message == "1 of 2 replicas answer"


def test_counts_of_the_spec_before_are_not_completion() -> None:
    assert told(reported(2, workload(2, ready=2, stale=True)), "Progressing") == ("True", "RollingOut")


def test_an_old_replica_that_is_still_there_is_not_completion() -> None:
    assert told(reported(2, workload(3, ready=3, updated=2)), "Progressing") == ("True", "RollingOut")


def test_scaled_to_zero() -> None:
    report = reported(0, workload(0))
    assert told(report, "Ready") == ("False", "ScaledToZero")
    assert told(report, "Progressing") == ("False", "Complete")
    assert told(report, "Degraded") == ("False", "AsExpected")


def test_loading_and_fetching_are_told_apart() -> None:
    assert told(reported(1, workload(1), engine(state={"running": {}})), "Ready") == ("False", "Loading")
    assert told(reported(1, workload(1), fetch(state={"running": {}})), "Ready") == ("False", "FetchingModel")


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (
            engine(
                state={
                    "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nope:1"'}
                }
            ),
            "ImagePullBackOff",
            'Back-off pulling image "nope:1"',
        ),
        (engine(state={"waiting": {"reason": "ErrImagePull", "message": "x"}}), "ImagePullBackOff", "x"),
        (
            engine(**crashed("loading\nValueError: no config.json in /models/model\n")),
            "CrashLoopBackOff",
            "ValueError: no config.json in /models/model",
        ),
        (engine(**crashed("", code=3)), "CrashLoopBackOff", "it ended with exit code 3 and said nothing"),
        (
            engine(**crashed("", code=137, reason="OOMKilled")),
            "CrashLoopBackOff",
            "it ran out of memory (OOMKilled)",
        ),
        (
            fetch(**crashed("Traceback\nfairlead fetch: there is no org/nope on huggingface.co")),
            "ModelFetchFailed",
            "the model could not be fetched: fairlead fetch: there is no org/nope on huggingface.co",
        ),
        (
            fetch(state={"terminated": {"exitCode": 1, "message": "no such model"}}),
            "ModelFetchFailed",
            "the model could not be fetched: no such model",
        ),
        (
            fetch(
                state={
                    "waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
                }
            ),
            "SecretNotFound",
            "there is no Secret hub",
        ),
        (
            pod(
                phase="Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                    }
                ],
            ),
            "Unschedulable",
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        ),
        (
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": '0/2 nodes are available: persistentvolumeclaim "models" not found.',
                    }
                ]
            ),
            "ClaimNotFound",
            "there is no PersistentVolumeClaim models",
        ),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted", "low on memory"),
    ],
)
def test_a_pods_own_reason(seen: dict[str, Any], reason: str, words: str) -> None:
    report = reported(1, workload(1), seen)
    assert told(report, "Ready") == ("False", reason)
    assert told(report, "Degraded") == ("True", reason)
    assert all(
        condition.message == words for condition in report.conditions if condition.type != "Progressing"
    )


def test_a_bad_new_replica_degrades_while_the_old_ones_answer() -> None:
    broken = engine(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    report = reported(2, workload(3, ready=2, updated=1), broken)
    assert told(report, "Ready") == ("True", "ReplicasReady")
    assert told(report, "Degraded") == ("True", "ImagePullBackOff")


def test_pods_that_leave_or_were_replaced_are_no_fault() -> None:
    leaving = engine(**crashed("bye"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    evicted = pod(phase="Failed", reason="Evicted")
    assert told(reported(1, workload(1, ready=1), leaving, evicted), "Degraded") == ("False", "AsExpected")


def test_a_deployment_that_makes_no_pods() -> None:
    quota = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota",
    }
    report = reported(1, workload(conditions=[quota]))
    assert told(report, "Ready") == ("False", "FailedCreate")
    assert told(report, "Degraded") == ("True", "FailedCreate")


def test_a_rollout_that_takes_too_long() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "x"}
    report = reported(1, workload(1, conditions=[late]))
    assert told(report, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert told(report, "Degraded") == ("True", "ProgressDeadlineExceeded")


def test_a_refusal_comes_first_and_stops_progress() -> None:
    refusal = Problem("InvalidSpec", "spec.podTemplate.spec.hostPID: no")
    report = reported(1, None, refusal=refusal)
    assert {told(report, kind)[1] for kind in ("Ready", "Progressing", "Degraded")} == {"InvalidSpec"}
    still_serving = reported(1, workload(1, ready=1), refusal=refusal)
    assert told(still_serving, "Ready") == ("True", "ReplicasReady")


def test_a_taken_name_says_who_has_it_and_what_to_ask_for() -> None:
    report = reported(1, None, name_holders=(("chat", "default/a"),), address="team/b")
    condition = find(report, "NameTaken")
    assert condition is not None
    assert condition.message == "chat is held by default/a; requests reach this one as team/b"
    assert find(reported(1, None), "NameTaken") is None


def test_the_time_of_a_transition_stays_until_the_next() -> None:
    first = reported(1, workload(1))
    early = [
        entry | {"lastTransitionTime": "2025-01-01T00:00:00Z"} for entry in first.as_manifest()["conditions"]
    ]
    turned = reported(1, workload(1, ready=1), conditions=tuple(early))
    times = {entry.type: entry.last_transition_time for entry in turned.conditions}
    assert times == {
        "Ready": "2026-01-01T12:00:00Z",
        "Progressing": "2026-01-01T12:00:00Z",
        "Degraded": "2025-01-01T00:00:00Z",
    }
