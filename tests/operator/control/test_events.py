"""Events against a real API server: one for each reason, which counts up."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from llm_operator.control.cluster import Cluster
from llm_operator.control.events import Events
from llm_operator.status.news import News
from waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(name: str, labels: dict[str, str], owners: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
        "spec": {"containers": [{"name": "engine", "image": "x"}]},
    }


def engine_status(restarts: int, **state: Any) -> dict[str, Any]:
    entry = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": restarts}
    return {"phase": "Running", "containerStatuses": [entry | state]}


def crash(restarts: int) -> list[dict[str, Any]]:
    """Return the statuses that a kubelet reports one after the other in a turn of a crash loop."""
    ended = {"terminated": {"exitCode": 1, "message": f"attempt {restarts}"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return [
        engine_status(restarts, state=ended),
        engine_status(restarts, state=waiting, lastState=ended),
        engine_status(restarts + 1, state={"running": {}}, lastState=ended),
    ]


def events_of(world: Any, name: str) -> list[dict[str, Any]]:
    return list(world.list("event", fieldSelector=f"involvedObject.name={name}"))


@pytest.mark.usefixtures("operator")
def test_a_crash_loop_has_one_reason_and_one_event(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    workload = until(lambda: world.get("deployment", f"{name}-engine"))
    labels = workload["spec"]["template"]["metadata"]["labels"]
    world.apply(pod(name, labels, world.pod_owners(name)))

    for restarts in range(3):
        for status in crash(restarts):
            world.set_status("pod", name, status)
            until(lambda restarts=restarts: degradation(world, name) == f"attempt {restarts}")
            until(lambda status=status: seen(world, name, status["containerStatuses"][0]["restartCount"]))
            assert world.reason(name, "Degraded") == "CrashLoopBackOff"

    (event,) = events_of(world, name)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "CrashLoopBackOff", "attempt 0")


def degradation(world: Any, name: str) -> str:
    return str(world.condition(name, "Degraded").get("message", ""))


def seen(world: Any, name: str, restarts: int) -> bool:
    return bool(world.get("llmd", name)["status"].get("restarts") == restarts)


@pytest.fixture
def subject(world: Any, manifest: Any, name: str) -> dict[str, Any]:
    world.apply(manifest(name))
    return dict(world.get("llmd", name))


def failed(message: str) -> list[News]:
    return [News("Warning", "CrashLoopBackOff", message)]


async def test_an_event_counts_up_at_most_once_in_an_interval(
    world: Any, cluster_of_operator: Cluster, subject: dict[str, Any], name: str
) -> None:
    events = Events(cluster_of_operator)
    for minute in (0, 3, 6, 9):
        await events.record(subject, failed(f"at {minute}"), NOON + timedelta(minutes=minute))
    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (1, "at 0")

    await events.record(subject, failed("at 12"), NOON + timedelta(minutes=12))

    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (5, "at 12")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == (
        "2026-01-01T12:00:00Z",
        "2026-01-01T12:12:00Z",
    )


@pytest.mark.more
async def test_a_restarted_operator_continues_the_event(
    world: Any, cluster_of_operator: Cluster, subject: dict[str, Any], name: str
) -> None:
    await Events(cluster_of_operator).record(subject, failed("first"), NOON)
    await Events(cluster_of_operator).record(subject, failed("soon"), NOON + timedelta(minutes=1))
    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (1, "first")

    await Events(cluster_of_operator).record(subject, failed("later"), NOON + timedelta(minutes=11))

    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (2, "later")


async def test_an_expired_event_is_created_again(
    world: Any, cluster_of_operator: Cluster, subject: dict[str, Any], name: str
) -> None:
    events = Events(cluster_of_operator)
    await events.record(subject, failed("first"), NOON)
    world.delete("event", events_of(world, name)[0]["metadata"]["name"])

    await events.record(subject, failed("again"), NOON + timedelta(hours=2))

    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (1, "again")


async def test_a_refused_event_does_not_fail(cluster_of_operator: Cluster, subject: dict[str, Any]) -> None:
    nowhere = {**subject, "metadata": {**subject["metadata"], "namespace": "no-such-namespace"}}
    await Events(cluster_of_operator).record(nowhere, failed("x"), NOON)
