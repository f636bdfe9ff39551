"""Keys between router, operator and engines: turned on for engines without them, checked, and replaced."""

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from cluster_manifests import llmdeployment, small_replicas
from waiting import until

from engine_server.contract.cluster.engine_keys import derive_key
from engine_server.contract.cluster.labels import ADMIN_PORT, ENGINE_PORT, ROLLED_AT_ANNOTATION

pytestmark = pytest.mark.e2e

SYSTEM, NAMESPACE, NAME = "fairlead-system", "team-b", "keyed"
REPLICAS = 2
ROUTER, ADMIN = "fairlead-router-key", "fairlead-admin-key"
COMPLETION = {"model": f"{NAMESPACE}/{NAME}", "prompt": "The sea is", "max_tokens": 2}


def set_roots(cluster: Any, secret: str, *keys: str) -> None:
    patch = json.dumps({"stringData": {"keys": "\n".join(keys)}})
    cluster.kubectl("patch", "secret", secret, "-n", SYSTEM, "--type=merge", "-p", patch)


def status(url: str, key: str | None, body: Any = None) -> int:
    """Return the status of the answer to a GET request with a key, or to a POST request with a body."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine pod, called directly."""

    # The addresses of its ports.
    public: str
    admin: str
    # The UID of its LLMDeployment.
    uid: str

    def complete(self, key: str | None) -> int:
        """Return the status of a completion with a key."""
        return status(f"{self.public}/v1/completions", key, COMPLETION)

    def ask_admin(self, key: str | None) -> int:
        """Return the status of a call of the admin API with a key."""
        return status(f"{self.admin}/is_sleeping", key)

    def derive(self, root: str) -> str:
        return derive_key(root.encode(), self.uid)

    def accepts(self, router_root: str, admin_root: str) -> tuple[bool, bool]:
        """Return which of two root keys the engine accepts, each for its own port."""
        completion = self.complete(self.derive(router_root))
        sleeping = self.ask_admin(self.derive(admin_root))
        assert {completion, sleeping} <= {200, 401}
        return completion == 200, sleeping == 200


@contextmanager
def called_directly(cluster: Any) -> Iterator[list[Engine]]:
    uid = cluster.llmd(NAME, NAMESPACE)["metadata"]["uid"]
    with ExitStack() as stack:
        engines = []
        for pod in cluster.pods(NAME, NAMESPACE):
            name = pod["metadata"]["name"]
            public = stack.enter_context(cluster.forward(name, NAMESPACE, ENGINE_PORT))
            admin = stack.enter_context(cluster.forward(name, NAMESPACE, ADMIN_PORT))
            engines.append(Engine(public, admin, uid))
        yield engines


@pytest.fixture(scope="module")
def keyed(cluster: Any, release: None, helm: Any) -> Iterator[str]:
    """Apply a deployment that starts without keys. At the end delete it, and turn keys on."""
    helm("upgrade", "keys.enabled=false")
    cluster.apply(NAMESPACE, llmdeployment(NAME, **small_replicas(REPLICAS)))
    cluster.wait_replicas(NAME, NAMESPACE, REPLICAS, 300)
    yield NAME
    cluster.kubectl("delete", "llmd", NAME, "-n", NAMESPACE)
    helm("upgrade")


def has_keys(pod: Any) -> bool:
    return f"--admin-port={ADMIN_PORT}" in pod["spec"]["containers"][0]["args"]


def turn_keys_on(cluster: Any, helm: Any) -> None:
    """Turn keys on for the release, which replaces no engine; then replace all by such as ask for keys."""
    before = cluster.engines(NAME, NAMESPACE)
    mark = f"{ROLLED_AT_ANNOTATION}={secrets.token_hex(4)}"

    def all_ask_for_keys() -> bool:
        pods = cluster.pods(NAME, NAMESPACE)
        return all(has_keys(pod) and pod["metadata"]["uid"] not in before for pod in pods)

    helm("upgrade")
    assert cluster.engines(NAME, NAMESPACE) == before
    cluster.kubectl("annotate", "--overwrite", "llmd", NAME, "-n", NAMESPACE, mark)
    until(all_ask_for_keys, "new replicas ask for keys", 300)
    cluster.wait_replicas(NAME, NAMESPACE, REPLICAS, 300)


@pytest.fixture
def with_keys(cluster: Any, keyed: str, helm: Any) -> str:
    """Return the name of the deployment. Its keys are turned on unless a test has done so."""
    if not all(map(has_keys, cluster.pods(keyed, NAMESPACE))):
        turn_keys_on(cluster, helm)
    return keyed


def test_running_engines_take_keys_and_no_request_fails(
    cluster: Any, keyed: str, helm: Any, served: Any
) -> None:
    with served("keys turned on, and adopted", model=COMPLETION["model"]):
        turn_keys_on(cluster, helm)


def test_each_port_of_an_engine_accepts_its_own_key_alone(cluster: Any, with_keys: str) -> None:
    (router_root,), (admin_root,) = cluster.root_keys("router"), cluster.root_keys("admin")
    with called_directly(cluster) as engines:
        assert len(engines) == REPLICAS
        for engine in engines:
            router, admin = engine.derive(router_root), engine.derive(admin_root)
            keys = (None, "none", router_root, router, admin)
            assert [engine.complete(key) for key in keys] == [401, 401, 401, 200, 401]
            assert [engine.ask_admin(key) for key in keys] == [401, 401, 401, 401, 200]
            with urllib.request.urlopen(f"{engine.public}/ready", timeout=60) as answer:
                assert answer.status == 200


def test_root_keys_are_replaced_without_a_restart_and_no_request_fails(
    cluster: Any, with_keys: str, served: Any
) -> None:
    def containers() -> set[tuple[str, int]]:
        pods = [*cluster.get("pods", "-n", SYSTEM)["items"], *cluster.pods(with_keys, NAMESPACE)]
        found: set[tuple[str, int]] = cluster.containers(pods)
        return found

    def routers_use(root: str) -> bool:
        cluster.refresh_volumes(SYSTEM, NAMESPACE)
        routers = cluster.names("pods", SYSTEM, "app.kubernetes.io/component=router")
        command = ("python3", "-c", "print(open('/etc/fairlead/router-key/keys').readline())")
        return all(cluster.kubectl("exec", name, "-n", SYSTEM, "--", *command) == root for name in routers)

    before = containers()
    old_router, old_admin = cluster.root_keys("router")[0], cluster.root_keys("admin")[0]
    new_router, new_admin = secrets.token_hex(24), secrets.token_hex(24)

    with called_directly(cluster) as engines, served("root keys replaced", model=COMPLETION["model"]):

        def all_accept(router_root: str, admin_root: str, expected: bool) -> bool:
            cluster.refresh_volumes(SYSTEM, NAMESPACE)
            return all(engine.accepts(router_root, admin_root) == (expected, expected) for engine in engines)

        set_roots(cluster, ROUTER, old_router, new_router)
        set_roots(cluster, ADMIN, old_admin, new_admin)
        until(lambda: all_accept(new_router, new_admin, True), "all engines accept the new keys", 300)
        set_roots(cluster, ROUTER, new_router, old_router)
        set_roots(cluster, ADMIN, new_admin, old_admin)
        until(lambda: routers_use(new_router), "routers use the new key", 300)
        set_roots(cluster, ROUTER, new_router)
        set_roots(cluster, ADMIN, new_admin)
        until(lambda: all_accept(old_router, old_admin, False), "no engine accepts the old keys", 300)
        assert all_accept(new_router, new_admin, True)
    assert containers() == before
