"""Pods whose containers a node does not create, against a real API server; the tests act as scheduler and kubelet."""

from collections.abc import Iterator
from typing import Any

import pytest
from llm_operator.control import warning_poller
from waiting import until

CONTAINER = {"name": "engine", "image": "x"}
CREATING = {
    **CONTAINER,
    "ready": False,
    "restartCount": 0,
    "imageID": "",
    "state": {"waiting": {"reason": "ContainerCreating"}},
}


@pytest.fixture(scope="module", autouse=True)
def _has_little_patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warning_poller, "PATIENCE_SECONDS", 0.2)
        patched.setattr(warning_poller, "INTERVAL_SECONDS", 0.2)
        yield


def start_pod(world: Any, name: str) -> dict[str, Any]:
    """Create a pod of an LLMDeployment that a node has taken, as the kubelet reports it before its containers."""
    until(lambda: world.find("deployment", f"{name}-engine"))
    labels = world.get("deployment", f"{name}-engine")["spec"]["template"]["metadata"]["labels"]
    metadata = {"name": f"{name}-1", "labels": labels, "ownerReferences": world.pod_owners(name)}
    spec = {"containers": [CONTAINER], "nodeName": "node1"}
    world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [CREATING]}
    world.set_status("pod", f"{name}-1", status)
    pod: dict[str, Any] = world.get("pod", f"{name}-1")
    return pod


def warn(world: Any, pod: dict[str, Any], reason: str, message: str, number: int = 1) -> None:
    """Create an Event as the kubelet does."""
    about = {"kind": "Pod", "apiVersion": "v1"} | {
        key: pod["metadata"][key] for key in ("name", "namespace", "uid")
    }
    time = "2026-01-01T00:00:01Z"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod['metadata']['name']}.{number}"},
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "firstTimestamp": time,
        "lastTimestamp": time,
    }
    world.apply(event)


@pytest.mark.usefixtures("operator")
def test_a_config_map_that_a_mount_lacks_is_named_until_the_pod_is_gone(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(manifest(name))
    pod = start_pod(world, name)
    warn(world, pod, "FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "no-such" not found')

    until(lambda: world.reason(name, "Ready") == "ConfigMapNotFound")
    assert "no-such" in world.condition(name, "Ready")["message"]
    assert world.condition(name, "Degraded")["status"] == "True"

    world.delete("pod", pod["metadata"]["name"])
    until(lambda: world.condition(name, "Degraded")["status"] == "False")


@pytest.mark.usefixtures("operator")
def test_events_too_large_to_read_leave_the_start_as_it_is(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    pod = start_pod(world, name)
    for number in range(3):
        warn(world, pod, "FailedMount", "x" * 500_000, number)

    until(lambda: world.reason(name, "Ready") == "Starting")
    world.delete("event", f"{name}-1.0")
    world.delete("event", f"{name}-1.1")
    until(lambda: world.reason(name, "Ready") == "FailedMount")
    assert len(world.condition(name, "Ready")["message"]) <= 1000
