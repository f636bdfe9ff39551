"""Events against a real API server: one for each reason, which counts up."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from llm_operator.control.cluster import Cluster
from llm_operator.control.events import Events
from llm_operator.status.news import News
from waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
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


def events_of(world: Any, name: str, namespace: str = "default") -> list[dict[str, Any]]:
    listed = world.kubectl(
        "get", "events", "-n", namespace, "--field-selector", f"involvedObject.name={name}", "-o", "yaml"
    )
    return list(yaml.safe_load(listed)["items"])


@pytest.mark.usefixtures("operator")
def test_a_crash_loop_has_one_reason_and_one_event(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    workload = until(lambda: world.get("deployment", f"{name}-engine"))
    world.apply(pod(name, workload["spec"]["template"]["metadata"]["labels"]))

    for restarts in range(3):
        for status in crash(restarts):
            world.set_status("pod", name, status)
            until(
                lambda restarts=restarts: (
                    world.condition(name, "Degraded")["message"] == f"attempt {restarts}"
                )
            )
            until(lambda status=status: seen(world, name, status["containerStatuses"][0]["restartCount"]))
            assert world.condition(name, "Degraded")["reason"] == "CrashLoopBackOff"

    (event,) = events_of(world, name)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "CrashLoopBackOff", "attempt 0")
    world.kubectl("delete", "pod", name, "--force", "--grace-period=0")


def seen(world: Any, name: str, restarts: int) -> bool:
    return bool(world.get("llmd", name)["status"]["restarts"] == restarts)


@pytest.fixture
async def cluster(world: Any) -> AsyncIterator[Cluster]:
    """The API with the operator's own rights, which do not include reading events."""
    configuration = Configuration()
    account = str(world.service_account("default"))
    await load_kube_config(account, client_configuration=configuration)
    async with ApiClient(configuration) as api:
        yield Cluster(api)


@pytest.fixture
def subject(world: Any, manifest: Any, name: str) -> dict[str, Any]:
    world.apply(manifest(name))
    found = world.get("llmd", name)
    assert isinstance(found, dict)
    return found


def failed(message: str) -> list[News]:
    return [News("Warning", "CrashLoopBackOff", message)]


async def test_an_event_counts_up_at_most_once_in_an_interval(
    world: Any, cluster: Cluster, subject: dict[str, Any], name: str
) -> None:
    events = Events(cluster)
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


async def test_a_restarted_operator_continues_the_event(
    world: Any, cluster: Cluster, subject: dict[str, Any], name: str
) -> None:
    await Events(cluster).record(subject, failed("first"), NOON)
    await Events(cluster).record(subject, failed("soon"), NOON + timedelta(minutes=1))
    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (1, "first")

    await Events(cluster).record(subject, failed("later"), NOON + timedelta(minutes=11))

    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (2, "later")


async def test_an_expired_event_is_created_again(
    world: Any, cluster: Cluster, subject: dict[str, Any], name: str
) -> None:
    events = Events(cluster)
    await events.record(subject, failed("first"), NOON)
    world.kubectl("delete", "event", events_of(world, name)[0]["metadata"]["name"])

    await events.record(subject, failed("again"), NOON + timedelta(hours=2))

    (event,) = events_of(world, name)
    assert (event["count"], event["message"]) == (1, "again")


async def test_a_refused_event_does_not_fail(cluster: Cluster, subject: dict[str, Any]) -> None:
    nowhere = {**subject, "metadata": {**subject["metadata"], "namespace": "no-such-namespace"}}
    await Events(cluster).record(nowhere, failed("x"), NOON)
