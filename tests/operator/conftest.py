"""Operators that run against the API server, and the manifests that the tests share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from api_server import ApiServer, kubeconfig_of
from chart_manifests import YAML_LOADER
from kubernetes_client import Client, RefusedError
from operators import Operator, OperatorProcess
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


RENDERED: list[dict[str, Any]] = list(yaml.load_all(MANIFESTS.read_text(), YAML_LOADER))


def rules_in_manifests(kind: str, name: str) -> list[dict[str, Any]]:
    """Return the rules of a role, as the chart renders it."""
    for rendered in RENDERED:
        if (rendered["kind"], rendered["metadata"]["name"]) == (kind, name):
            return list(rendered["rules"])
    raise LookupError(f"{MANIFESTS} has no {kind} {name}")


OPERATOR_RULES = rules_in_manifests("ClusterRole", "fairlead-operator-fairlead-system")
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


class World(Client):
    """The API server with our CRD, used by an administrator in a namespace of the test's module."""

    def __init__(self, api_server: ApiServer, namespace: str) -> None:
        super().__init__(api_server.kubeconfig, namespace)
        self.api_server = api_server
        self.namespaces: set[str] = set()

    def create_namespace(self, name: str, **metadata: Any) -> str:
        self.namespaces.add(name)
        return super().create_namespace(name, **metadata)

    def service_account(self, home: str | None = None, *namespaces: str) -> Path:
        """Return a kubeconfig with the operator's rights in the namespaces, by default in its home, and no others.

        There is a Lease that an earlier operator has given up, so that the next one need not wait.
        """
        home = home or self.namespace
        for namespace in namespaces or (home,):
            self.apply(*bound("Role", f"operator-of-{home}", namespace, home, OPERATOR_RULES))
        return self._account(home)

    def cluster_wide_account(self) -> Path:
        """Return a kubeconfig with the operator's rights in all namespaces."""
        self.apply(*bound("ClusterRole", f"operator-of-{self.namespace}", "", self.namespace, OPERATOR_RULES))
        return self._account(self.namespace)

    def _account(self, home: str) -> Path:
        self.grant("operator-lease", home, LEASE_RULES)
        self.grant("operator-routers", home, ROUTERS_RULES)
        account = {"name": "operator", "namespace": home}
        lease = {"name": "fairlead-operator", "namespace": home}
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        if self.find("lease", lease["name"], home) is None:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self.create({**kind, "metadata": lease, "spec": {"holderIdentity": ""}})
        return kubeconfig_of(self.token("operator", home), self.kubeconfig, f"operator-of-{home}")

    def grant(self, role: str, namespace: str, rules: list[dict[str, Any]]) -> None:
        """Give the operator's account of a namespace further rights there."""
        self.apply(*bound("Role", role, namespace, namespace, rules))

    def kubectl(self, *arguments: str, stdin: object = None) -> str:
        done = self.api_server.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def refused(self, *arguments: str, stdin: object = None) -> str:
        """Run kubectl, which must fail; return its error."""
        done = self.api_server.kubectl(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return str(done.stderr)

    def dry_run(self, manifest: dict[str, Any]) -> str:
        """Return the API server's objections to a manifest, unknown fields included; nothing is stored."""
        try:
            self.create(manifest, dryRun="All")
        except RefusedError as error:
            assert error.status in (400, 422), error
            return error.message
        return ""

    def condition(self, name: str, kind: str, namespace: str | None = None) -> dict[str, Any]:
        """Return a condition, empty before it is reported."""
        listed = self.get("llmd", name, namespace).get("status", {}).get("conditions", ())
        return next((dict(entry) for entry in listed if entry["type"] == kind), {})

    def reason(self, name: str, kind: str, namespace: str | None = None) -> str:
        """Return the reason of a condition, empty before it is reported."""
        return str(self.condition(name, kind, namespace).get("reason", ""))

    def degraded(self, name: str, reason: str) -> dict[str, Any] | None:
        """Return the condition Degraded if it has this reason."""
        found = self.condition(name, "Degraded")
        return found if found.get("reason") == reason else None

    def observed_generation(self, name: str, namespace: str | None = None) -> int:
        """Return the generation that the operator has reported, 0 before."""
        return int(self.get("llmd", name, namespace).get("status", {}).get("observedGeneration", 0))


@pytest.fixture(scope="module")
def world(api_server: ApiServer, definition: None, request: pytest.FixtureRequest) -> Iterator[World]:
    """The API server, with a namespace for this module alone. No LLMDeployment is left to operators of others."""
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    world = World(api_server, f"{module}-{uuid4().hex[:6]}")
    world.create_namespace(world.namespace)
    yield world
    for namespace in world.namespaces:
        world.delete_all("llmd", namespace)


@pytest.fixture
def start_operator() -> Iterator[Callable[..., Operator]]:
    """Return a function that starts operators; those that still run are stopped after the test."""
    started: list[Operator] = []

    def start(kubeconfig: Path, *flags: str) -> Operator:
        started.append(Operator(kubeconfig, *flags))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Return a function that starts operators in processes of their own; they are killed after the test."""
    started: list[OperatorProcess] = []

    def start(kubeconfig: Path, *flags: str) -> OperatorProcess:
        started.append(OperatorProcess(kubeconfig, tmp_path / f"operator{len(started)}.log", *flags))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@contextmanager
def running(kubeconfig: Path, *flags: str) -> Iterator[Operator]:
    """Run an operator, which must end in order and without a traceback."""
    operator = Operator(kubeconfig, *flags)
    try:
        until(lambda: operator.logged("this operator holds"))
        yield operator
        assert operator.stop() == 0, operator.log
        assert "Traceback" not in operator.log, operator.log
    finally:
        operator.stop()


@pytest.fixture(scope="session")
def run_operator() -> Callable[..., Any]:
    """Return a context manager that runs an operator which works, and must end in order and without a traceback."""
    return running


@pytest.fixture(scope="module")
def operator(world: World, run_operator: Callable[..., Any]) -> Iterator[Operator]:
    """Run one operator of the module's namespace for all its tests, with the rights that the chart gives it."""
    home = world.namespace
    with run_operator(world.service_account(), f"--namespace={home}", f"--lease-namespace={home}") as running:
        yield running
