"""The events that a change of status causes."""

from typing import Any

from llm_operator.api.status import Condition, ConditionStatus, Status
from llm_operator.status.news import News, news


def condition(kind: str, status: ConditionStatus, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time="")


def failing(restarts: int = 0, message: str = "bye") -> Status:
    conditions = (
        condition("Ready", "False", "CrashLoopBackOff", message),
        condition("Progressing", "True", "RollingOut"),
        condition("Degraded", "True", "CrashLoopBackOff", message),
    )
    return Status(restarts=restarts, conditions=conditions)


SERVING = Status(
    conditions=(
        condition("Ready", "True", "ReplicasReady", "1 of 1 replicas answer"),
        condition("Degraded", "False", "AsExpected"),
    )
)


def after(status: Status) -> dict[str, Any]:
    return status.as_manifest()


def test_a_first_failure_is_one_warning() -> None:
    assert news(failing(), {}) == [News("Warning", "CrashLoopBackOff", "bye")]


def test_a_failure_that_ends_service_is_one_warning() -> None:
    assert news(failing(), after(SERVING)) == [News("Warning", "CrashLoopBackOff", "bye")]


def test_each_restart_in_a_crash_loop_counts() -> None:
    assert news(failing(2, "again"), after(failing(1))) == [News("Warning", "CrashLoopBackOff", "again")]


def test_a_changed_message_alone_is_no_news() -> None:
    assert news(failing(1, "other words"), after(failing(1))) == []


def test_a_restart_without_a_failure_is_no_news() -> None:
    assert news(Status(restarts=3, conditions=SERVING.conditions), after(SERVING)) == []


def test_becoming_ready_is_normal() -> None:
    assert news(SERVING, after(failing())) == [News("Normal", "ReplicasReady", "1 of 1 replicas answer")]


def test_a_stalled_and_degraded_object_has_one_event() -> None:
    conditions = (
        condition("Ready", "False", "InvalidSpec", "no"),
        condition("Degraded", "True", "InvalidSpec", "no"),
        condition("Stalled", "True", "InvalidSpec", "no"),
    )
    assert news(Status(conditions=conditions), {}) == [News("Warning", "InvalidSpec", "no")]
