"""Operators that run against the API server, and the manifests that the tests share."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from llm_operator.api.crd import crd
from waiting import until

MANIFESTS = Path(__file__).parents[2] / "manifests" / "fairlead.yaml"


def llmdeployment(name: str = "smollm2", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"uri": "hf://org/name"}, **spec},
    }


@pytest.fixture(scope="session")
def manifest() -> Callable[..., dict[str, Any]]:
    """Return a function that makes an LLMDeployment; keywords are fields of its spec."""
    return llmdeployment


def rules_in_manifests(kind: str, name: str) -> list[dict[str, Any]]:
    """Return the rules of a role, as the chart renders it."""
    for rendered in yaml.safe_load_all(MANIFESTS.read_text()):
        if (rendered["kind"], rendered["metadata"]["name"]) == (kind, name):
            return list(rendered["rules"])
    raise LookupError(f"{MANIFESTS} has no {kind} {name}")


OPERATOR_RULES = rules_in_manifests("ClusterRole", "fairlead-operator")
LEASE_RULES = rules_in_manifests("Role", "fairlead-operator-lease")
ROUTERS_RULES = rules_in_manifests("Role", "fairlead-operator-routers")


def bound(
    kind: str, name: str, namespace: str, home: str, rules: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a role and its binding to the operator's account."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": home}],
    }
    return role, binding


class World:
    """The API server with our CRD, used through kubectl."""

    def __init__(self, api_server: Any) -> None:
        self.api_server = api_server

    def service_account(self, home: str, *namespaces: str) -> Path:
        """Return a kubeconfig with the operator's rights in the namespaces, by default in all, and no others.

        The Lease is created, as the chart does.
        """
        kind = "Role" if namespaces else "ClusterRole"
        for namespace in namespaces or ("",):
            self.apply(*bound(kind, f"operator-of-{home}", namespace, home, OPERATOR_RULES))
        self.apply(*bound("Role", "operator-lease", home, home, LEASE_RULES))
        self.apply(*bound("Role", "operator-routers", home, home, ROUTERS_RULES))
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "operator", "namespace": home},
            },
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "fairlead-operator", "namespace": home},
            },
        )
        token = self.kubectl("create", "token", "operator", "-n", home).strip()
        config = yaml.safe_load(self.api_server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        file = self.api_server.kubeconfig.with_name(f"operator-of-{home}")
        file.write_text(yaml.safe_dump(config))
        return Path(file)

    def grant(self, role: str, namespace: str, rules: list[dict[str, Any]]) -> None:
        """Give the operator's account of a namespace further rights there."""
        self.apply(*bound("Role", role, namespace, namespace, rules))

    def kubectl(self, *arguments: str, stdin: object = None) -> str:
        done = self.api_server.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def refused(self, *arguments: str, stdin: object = None) -> str:
        done = self.api_server.kubectl(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return str(done.stderr)

    def apply(self, *manifests: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": list(manifests)})

    def dry_run(self, manifest: dict[str, Any]) -> str:
        """Return the API server's objections to a manifest, unknown fields included; nothing is stored."""
        path = f"apis/fairlead.dev/v1alpha1/namespaces/{manifest['metadata']['namespace']}/llmdeployments"
        status, message = self.api_server.post(f"{path}?dryRun=All&fieldValidation=Strict", manifest)
        assert status in (201, 400, 422), (status, message)
        return str(message)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        found = yaml.safe_load(self.kubectl("get", kind, name, "-n", namespace, "-o", "yaml"))
        assert isinstance(found, dict)
        return found

    def condition(self, name: str, kind: str, namespace: str = "default") -> dict[str, Any]:
        listed = self.get("llmd", name, namespace)["status"]["conditions"]
        return next((entry for entry in listed if entry["type"] == kind), {})

    def degraded(self, name: str, reason: str) -> dict[str, Any] | None:
        """Return the condition Degraded if it has this reason."""
        found = self.condition(name, "Degraded")
        return found if found["reason"] == reason else None

    def set_status(self, kind: str, name: str, status: dict[str, Any], namespace: str = "default") -> None:
        """Report a status, as a controller or a kubelet does."""
        patch = yaml.safe_dump({"status": status})
        self.kubectl(
            "patch", kind, name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch
        )


@pytest.fixture(scope="session")
def world(api_server: Any) -> World:
    world = World(api_server)
    world.kubectl("apply", "--server-side", "-f", "-", stdin=crd())
    world.kubectl("wait", "--for=condition=Established", "crd/llmdeployments.fairlead.dev")
    return world


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Operator:
    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        self.metrics_port = free_port()
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "engine_server.cli",
                    "operator",
                    f"--health-port={free_port()}",
                    f"--metrics-port={self.metrics_port}",
                    "--engine-image=engine:1",
                    *flags,
                ],
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def logged(self, words: str) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"the operator ended:\n{self.log.read_text()}")
        return words in self.log.read_text()

    def metrics(self) -> str:
        """Return the page of metrics; only an operator that has logged something serves it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as page:
            return str(page.read().decode())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture(scope="session")
def operator_class() -> type[Operator]:
    """The class of running operators, for fixtures that need another kubeconfig or other flags."""
    return Operator


@pytest.fixture
def start_operator(tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Return a function that starts operators; those that still run are killed after the test."""
    started: list[Operator] = []

    def start(kubeconfig: Path, *flags: str) -> Operator:
        operator = Operator(kubeconfig, tmp_path / f"operator{len(started)}.log", *flags)
        started.append(operator)
        return operator

    yield start
    for operator in started:
        if operator.process.poll() is None:
            operator.process.kill()
            operator.process.wait()


@pytest.fixture(scope="module")
def run_operator(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a context manager that runs an operator, which must end in order and without a traceback."""

    @contextmanager
    def run(kubeconfig: Path, *flags: str) -> Iterator[Operator]:
        running = Operator(kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log", *flags)
        try:
            yield running
            assert running.stop() == 0, running.log.read_text()
            assert "Traceback" not in running.log.read_text(), running.log.read_text()
        finally:
            running.process.kill()
            running.process.wait()

    return run


@pytest.fixture(scope="module")
def operator(world: World, run_operator: Callable[..., Any]) -> Iterator[Operator]:
    """Run one operator for all tests of a module, with the rights that the chart gives it."""
    with run_operator(world.service_account("default")) as running:
        until(lambda: running.logged("holds default/fairlead-operator"))
        yield running
