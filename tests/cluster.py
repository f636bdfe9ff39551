"""A cluster with Fairlead, as the end-to-end tests use it."""

import base64
import json
import re
import secrets
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_manifests import Manifest, idle_pod
from waiting import until

from engine_server.contract.cluster.engine_keys import derive_key
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL as LABEL

ROOT = Path(__file__).parents[1]
SYSTEM = "fairlead-system"
FINDS_THE_CORE = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    if b"engine_server.core" in (entry / "cmdline").read_bytes():
        os.kill(int(entry.name), signal.SIGKILL)
        break
else:
    raise SystemExit("no engine core")
"""

# Texts for the summary of the tests.
shown: list[str] = []


@dataclass(frozen=True, slots=True)
class Cluster:
    """kubectl and helm, called as a user would, and the API server."""

    environment: dict[str, str]
    image: str
    # Without an engine.
    control_plane_image: str
    # The address of a `kubectl proxy`.
    api: str

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

    def read(self, path: str) -> bytes:
        """Return an answer of the API server. In a loop, kubectl takes a quarter of a machine with two CPUs."""
        with urllib.request.urlopen(f"{self.api}/{path}", timeout=60) as answer:
            return bytes(answer.read())

    def llmd(self, name: str, namespace: str) -> Manifest:
        path = f"apis/fairlead.dev/v1alpha1/namespaces/{namespace}/llmdeployments/{name}"
        return dict(json.loads(self.read(path)))

    def pods(self, name: str, namespace: str) -> list[Manifest]:
        selector = urllib.parse.quote(f"{LABEL}={name}")
        listed = json.loads(self.read(f"api/v1/namespaces/{namespace}/pods?labelSelector={selector}"))
        return list(listed["items"])

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

    def kill_core(self, pod: str, namespace: str) -> Callable[[], bool]:
        """Kill the core of an engine, so that the kubelet restarts its container.

        Return the question whether it was restarted and is ready again.
        """

        def engine() -> Manifest:
            found = json.loads(self.read(f"api/v1/namespaces/{namespace}/pods/{pod}"))
            return dict(found["status"]["containerStatuses"][0])

        before = engine()["restartCount"]
        self.kubectl("exec", pod, "-n", namespace, "-c", "engine", "--", "python", "-c", FINDS_THE_CORE)

        def is_ready_again() -> bool:
            status = engine()
            return bool(status["restartCount"] > before and status["ready"])

        return is_ready_again

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
        page = self.read(f"api/v1/namespaces/{namespace}/pods/{pod}:8000/proxy/metrics").decode()
        return sum(
            float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{")
        )

    def root_keys(self, role: str) -> list[str]:
        """Return the root keys of the router or of the operator ("admin")."""
        encoded = self.get("secret", f"fairlead-{role}-key", "-n", SYSTEM)["data"]["keys"]
        return base64.b64decode(encoded).decode().split()

    def engine_key(self, name: str, namespace: str) -> str:
        """Return the key with which the router calls the engines of an LLMDeployment."""
        return derive_key(self.root_keys("router")[0].encode(), self.llmd(name, namespace)["metadata"]["uid"])

    @contextmanager
    def forward(self, pod: str, namespace: str, port: int) -> Iterator[str]:
        """Yield an address on this machine that reaches a port of a pod."""
        with announcing(
            ["kubectl", "port-forward", f"pod/{pod}", f":{port}", "-n", namespace], self.environment
        ) as address:
            yield f"http://{address}"

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
            status = self.llmd(name, namespace).get("status", {})
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
        conditions = self.llmd(name, namespace).get("status", {}).get("conditions", [])
        found: Manifest = next((entry for entry in conditions if entry["type"] == kind), {})
        return found

    def show(self, title: str, text: str) -> None:
        shown.append(f"\n--- {title}\n{text}")


@contextmanager
def kubectl_proxy(environment: dict[str, str]) -> Iterator[str]:
    """Yield an address at which the API server needs no credentials."""
    command = ["kubectl", "proxy", "--port=0"]
    with announcing(command, environment) as address:
        yield f"http://{address}"


@contextmanager
def announcing(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a command of kubectl that serves an address of this machine; yield the address, as it announces it."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:\d+", line)
            assert found, f"{' '.join(command)}: {line}"
            yield found[0]
        finally:
            process.terminate()
