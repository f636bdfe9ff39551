"""The work of an operations team on a serving deployment, none of which may fail a request."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_manifests import MISSING_IMAGE, llmdeployment
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE, OTHER = "team-a", "team-b"


def test_added_alias_restarts_no_engine_and_is_served(cluster: Any, smollm2: str, client: Any) -> None:
    engines = cluster.engines(smollm2, NAMESPACE)
    cluster.merge(smollm2, NAMESPACE, model={"servedNames": ["smollm2", "alias"]})
    until(lambda: "alias" in {model.id for model in client.models.list().data}, "the router knows the alias")
    answer = client.completions.create(model="alias", prompt="The sea is", max_tokens=4)
    assert answer.choices[0].text
    assert answer.model == "alias"
    cluster.merge(smollm2, NAMESPACE, model={"servedNames": ["smollm2"]})
    assert cluster.engines(smollm2, NAMESPACE) == engines


def test_deleted_pods_fail_no_request(cluster: Any, smollm2: str, served: Any) -> None:
    with served("each engine pod deleted"):
        for pod in cluster.pods(smollm2, NAMESPACE):
            cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE)
            cluster.wait_replicas(smollm2, NAMESPACE, 2)


def test_drain_of_a_node_fails_no_request(cluster: Any, smollm2: str, served: Any) -> None:
    nodes = [node["metadata"]["name"] for node in cluster.get("nodes")["items"]]
    if len(nodes) < 2:
        pytest.skip("a drain needs a second node, and this cluster has one")
    node = cluster.pods(smollm2, NAMESPACE)[0]["spec"]["nodeName"]
    try:
        with served(f"drain of {node}"):
            cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=400s")
            cluster.wait_replicas(smollm2, NAMESPACE, 2, 300)
        assert all(pod["spec"]["nodeName"] != node for pod in cluster.pods(smollm2, NAMESPACE))
    finally:
        cluster.kubectl("uncordon", node)


def kubelet_of(node: str) -> int | None:
    """Return the process of a node's kubelet, where the cluster script has started it."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    state = Path(os.environ.get("CLUSTER_DIR", home / "fairlead-cluster"))
    file = state / "run" / f"{node}-kubelet.pid"
    return int(file.read_text().split()[0]) if file.exists() else None


def test_stopped_kubelet_fails_no_request(cluster: Any, smollm2: str, served: Any) -> None:
    node = cluster.get("nodes")["items"][-1]["metadata"]["name"]
    kubelet = kubelet_of(node)
    if kubelet is None:
        pytest.skip(f"the kubelet of {node} is not a process of the cluster script")

    def is_ready() -> bool:
        conditions = json.loads(cluster.read(f"api/v1/nodes/{node}"))["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    with served(f"kubelet of {node} stopped until the node was lost"):
        os.kill(kubelet, signal.SIGSTOP)
        try:
            until(lambda: not is_ready(), "the control plane has lost the node")
        finally:
            os.kill(kubelet, signal.SIGCONT)
        until(is_ready, "the node is back")
        cluster.wait_replicas(smollm2, NAMESPACE, 2, 300)


@pytest.fixture
def broken(cluster: Any, release: None) -> Iterator[Any]:
    """Apply deployments that can't start, and delete them at the end."""
    names: list[str] = []

    def apply(name: str, **spec: Any) -> None:
        names.append(name)
        cluster.apply(OTHER, llmdeployment(name, **spec))

    yield apply
    for name in names:
        cluster.kubectl("delete", "llmd", name, "-n", OTHER)


def test_missing_image_is_reported(cluster: Any, broken: Any) -> None:
    broken("no-image", engine={"image": MISSING_IMAGE})
    until(
        lambda: cluster.condition("no-image", OTHER, "Ready").get("reason") == "ImagePullBackOff",
        "Ready has the reason ImagePullBackOff",
    )
    cluster.show("describe of a missing image", cluster.kubectl("describe", "llmd", "no-image", "-n", OTHER))


def test_exceeded_quota_is_reported(cluster: Any, broken: Any) -> None:
    cluster.kubectl("create", "quota", "memory", "-n", OTHER, "--hard=limits.memory=1Gi")
    try:
        broken("over-quota", resources={"memory": "2Gi"})
        until(
            lambda: "quota" in cluster.condition("over-quota", OTHER, "Ready").get("message", ""),
            "Ready names the quota",
        )
        cluster.show("Ready over the quota", cluster.condition("over-quota", OTHER, "Ready")["message"])
    finally:
        cluster.kubectl("delete", "quota", "memory", "-n", OTHER)
