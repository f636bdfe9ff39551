"""Adapters of LLMDeployments, from the spec to an engine's admin API and back into the status, on a real API server."""

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from llm_operator.control import adapter_pusher, root_keys
from waiting import until

from engine_server.contract.cluster.adapters import AdapterState, AdapterStates, WantedAdapters
from engine_server.contract.cluster.engine_keys import derive_key

NAME, SECRET = "model", "fairlead-admin-key"
# Engines listen on one port, so each process that runs the tests has loopback addresses of its own.
ADDRESS = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.81"
# As the chart grants them by default.
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["patch"]},
]
FRENCH = {"name": "french", "uri": "hf://org/french"}
BROKEN = {"name": "broken", "uri": "/nowhere"}


class Engine(ThreadingHTTPServer):
    """The admin API of an engine that loads every adapter at once but those in /nowhere."""

    def __init__(self) -> None:
        super().__init__((ADDRESS, 8001), Admin)
        self.key = ""
        self.wanted: dict[str, str] = {}
        self.puts = 0

    def states(self) -> AdapterStates:
        return AdapterStates([state(*item) for item in self.wanted.items()])


def state(name: str, uri: str) -> AdapterState:
    if uri == "/nowhere":
        return AdapterState(name, uri, "failed", None, f"{uri}: no folder at {uri}")
    return AdapterState(name, uri, "ready", f"hash of {uri}")


class Admin(BaseHTTPRequestHandler):
    server: Engine

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] == f"Bearer {self.server.key}":
            self.server.wanted = msgspec.json.decode(content, type=WantedAdapters).by_name()
            self.server.puts += 1
        self.do_GET()

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"Bearer {self.server.key}"
        body = msgspec.json.encode(self.server.states()) if is_known else b""
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        threading.Thread(target=engine.serve_forever, args=(0.02,), daemon=True).start()
        yield engine
        engine.shutdown()


@pytest.fixture
def home(world: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace with a Secret for the operator's key. At the end the pod there goes, whose address others need."""
    test = request.node.name.removeprefix("test_").replace("_", "-")
    home = world.create_namespace(f"{world.namespace}-{test}"[:60].strip("-"))
    world.grant("operator-keys", home, RULES)
    world.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": home}})
    yield home
    world.delete_all("pod", home)


def engine_key(world: Any, home: str) -> str:
    """Return the key that the operator derives for the engines."""
    root = base64.b64decode(world.get("secret", SECRET, home)["data"]["keys"])
    return derive_key(root, world.get("llmd", NAME, home)["metadata"]["uid"])


def ready_pod(world: Any, home: str) -> None:
    """Create a ready pod of the Deployment, as its controller and a kubelet do."""
    template = world.get("deployment", f"{NAME}-engine", home)["spec"]["template"]
    metadata = {
        "name": "a",
        "namespace": home,
        "labels": template["metadata"]["labels"],
        "ownerReferences": world.pod_owners(NAME, home),
    }
    container = {"name": "engine", "image": "x"}
    world.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    )
    running = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 0, "imageID": ""}
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:25Z"}],
        "containerStatuses": [container | running | {"ready": True}],
    }
    world.set_status("pod", "a", status, home)


def adapters(world: Any, home: str) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = world.get("llmd", NAME, home).get("status", {}).get("adapters")
    return found


def serving_pods(world: Any, home: str) -> dict[str, list[str]]:
    """Return the pods that have each adapter."""
    return {one["name"]: one.get("pods", []) for one in adapters(world, home) or ()}


def condition(world: Any, home: str) -> tuple[str, str]:
    found = world.condition(NAME, "AdaptersReady", home)
    return found.get("status", ""), found.get("reason", "")


def operator_of(world: Any, home: str, start_operator: Any) -> Callable[[], Any]:
    """Return a function that starts an operator of the namespace, with the key in its Secret."""
    flags = (f"--namespace={home}", f"--lease-namespace={home}", f"--admin-key-secret={SECRET}")
    return partial(start_operator, world.service_account(home, home), *flags)


def test_adapters_reach_engines_and_the_status_without_a_new_pod_template(
    world: Any, home: str, start_operator: Any, manifest: Any, engine: Engine
) -> None:
    start = operator_of(world, home, start_operator)
    operator = start()
    world.apply(manifest(NAME, home, adapters=[FRENCH]))
    before = until(lambda: world.get("deployment", f"{NAME}-engine", home))["spec"]["template"]
    until(lambda: condition(world, home) == ("False", "NoReadyReplica"))
    engine.key = engine_key(world, home)

    ready_pod(world, home)

    until(lambda: condition(world, home) == ("True", "AdaptersServed"))
    served = {"name": "french", "hash": "hash of hf://org/french", "pods": ["a"]}
    assert adapters(world, home) == [served]

    world.apply(manifest(NAME, home, adapters=[FRENCH, BROKEN]))

    until(lambda: condition(world, home) == ("False", "AdapterFailed"))
    assert adapters(world, home) == [served, {"name": "broken", "error": "/nowhere: no folder at /nowhere"}]
    message = world.condition(NAME, "AdaptersReady", home)["message"]
    assert message == "the adapter broken: /nowhere: no folder at /nowhere"
    listed = world.get("configmap", f"{NAME}-adapters", home)["data"]["adapters.json"]
    assert json.loads(listed) == {"adapters": [FRENCH, BROKEN], "model": "hf://org/name"}

    assert operator.stop() == 0
    world.apply(manifest(NAME, home, adapters=[{**FRENCH, "uri": "hf://org/other"}]))
    engine.wanted, puts = {}, engine.puts
    start()

    until(lambda: engine.wanted == {"french": "hf://org/other"})
    until(lambda: condition(world, home) == ("True", "AdaptersServed"))
    assert engine.puts > puts
    assert adapters(world, home) == [{**served, "hash": "hash of hf://org/other"}]
    assert world.get("deployment", f"{NAME}-engine", home)["spec"]["template"] == before

    world.apply(manifest(NAME, home))
    until(lambda: adapters(world, home) is None)
    assert condition(world, home) == ("", "")
    # Former replicas mount what they were made with.
    assert f"{NAME}-adapters" in world.names("configmap", home)
    world.patch("replicaset", f"{NAME}-engine-1", {"spec": {"replicas": 0}}, home)
    until(lambda: not world.list("configmap", home, labelSelector="fairlead.dev/llmdeployment"))


@pytest.mark.more
def test_adapters_that_change_while_the_admin_key_is_replaced_reach_engines_with_the_new_key(
    world: Any,
    home: str,
    start_operator: Any,
    manifest: Any,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(root_keys, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(adapter_pusher, "FIRST_DELAY_SECONDS", 0.1)
    operator_of(world, home, start_operator)()
    world.apply(manifest(NAME, home, adapters=[FRENCH]))
    until(lambda: condition(world, home) == ("False", "NoReadyReplica"))
    old = engine.key = engine_key(world, home)
    ready_pod(world, home)
    until(lambda: condition(world, home) == ("True", "AdaptersServed"))

    replaced = {"keys": base64.b64encode(b"the new root").decode()}
    metadata = {"name": SECRET, "namespace": home}
    world.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": replaced})
    engine.key = engine_key(world, home)
    world.apply(manifest(NAME, home, adapters=[FRENCH, {"name": "sql", "uri": "hf://org/sql"}]))

    until(lambda: engine.wanted == {"french": "hf://org/french", "sql": "hf://org/sql"})
    assert engine.key != old
    until(lambda: serving_pods(world, home) == {"french": ["a"], "sql": ["a"]})
    assert condition(world, home) == ("True", "AdaptersServed")


def test_an_adapter_name_that_an_older_deployment_holds_is_reported(
    world: Any, start_operator: Any, manifest: Any
) -> None:
    home = world.namespace
    start_operator(world.service_account(), f"--namespace={home}", f"--lease-namespace={home}")
    world.apply(manifest("older", model={"uri": "a/b", "servedNames": ["french"]}))
    until(lambda: world.condition("older", "Ready"))

    world.apply(manifest("younger", adapters=[FRENCH]))

    taken = until(lambda: world.condition("younger", "NameTaken"))
    assert f"french is held by {home}/older" in taken["message"]
    # This operator has no admin key.
    assert world.reason("younger", "Stalled") == "NoAdminKey"
