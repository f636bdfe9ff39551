"""Adapters of LLMDeployments, from the spec to an engine's admin API and back into the status, on a real API server."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from waiting import until

from engine_server.contract.adapters import AdapterState, AdapterStates, WantedAdapters
from engine_server.contract.engine_keys import derive_key

NAMESPACE, NAME, SECRET = "adapted", "model", "fairlead-admin-key"
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
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        yield engine
        engine.shutdown()


def apply_adapters(world: Any, manifest: Any, *adapters: dict[str, str]) -> None:
    world.apply(manifest(NAME, NAMESPACE, adapters=list(adapters)))


def ready_pod(world: Any) -> None:
    """Create a ready pod of the Deployment, as its controller and a kubelet do."""
    template = world.get("deployment", f"{NAME}-engine", NAMESPACE)["spec"]["template"]
    metadata = {"name": "a", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
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
    world.set_status("pod", "a", status, NAMESPACE)


def adapters(world: Any) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = world.get("llmd", NAME, NAMESPACE)["status"].get("adapters")
    return found


def condition(world: Any) -> tuple[str, str]:
    found = world.condition(NAME, "AdaptersReady", NAMESPACE)
    return found.get("status", ""), found.get("reason", "")


def test_adapters_reach_engines_and_the_status_without_a_new_pod_template(
    world: Any, start_operator: Any, manifest: Any, engine: Engine
) -> None:
    world.kubectl("create", "namespace", NAMESPACE)
    account = world.service_account(NAMESPACE, NAMESPACE)
    world.grant("operator-keys", NAMESPACE, RULES)
    world.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}})
    flags = (f"--namespace={NAMESPACE}", f"--lease-namespace={NAMESPACE}", f"--admin-key-secret={SECRET}")
    operator = start_operator(account, *flags)
    apply_adapters(world, manifest, FRENCH)
    before = until(lambda: world.get("deployment", f"{NAME}-engine", NAMESPACE))["spec"]["template"]
    until(lambda: condition(world) == ("False", "NoReadyReplica"))
    root = base64.b64decode(world.get("secret", SECRET, NAMESPACE)["data"]["keys"])
    engine.key = derive_key(root, world.get("llmd", NAME, NAMESPACE)["metadata"]["uid"])

    ready_pod(world)

    until(lambda: condition(world) == ("True", "AdaptersServed"))
    served = {"name": "french", "hash": "hash of hf://org/french", "pods": ["a"]}
    assert adapters(world) == [served]

    apply_adapters(world, manifest, FRENCH, BROKEN)

    until(lambda: condition(world) == ("False", "AdapterFailed"))
    assert adapters(world) == [served, {"name": "broken", "error": "/nowhere: no folder at /nowhere"}]
    message = world.condition(NAME, "AdaptersReady", NAMESPACE)["message"]
    assert message == "the adapter broken: /nowhere: no folder at /nowhere"
    listed = world.get("configmap", f"{NAME}-adapters", NAMESPACE)["data"]["adapters.json"]
    assert json.loads(listed) == {"adapters": [FRENCH, BROKEN]}

    assert operator.stop() == 0
    apply_adapters(world, manifest, {**FRENCH, "uri": "hf://org/other"})
    engine.wanted, puts = {}, engine.puts
    start_operator(account, *flags)

    until(lambda: engine.wanted == {"french": "hf://org/other"})
    until(lambda: condition(world) == ("True", "AdaptersServed"))
    assert engine.puts > puts
    assert adapters(world) == [{**served, "hash": "hash of hf://org/other"}]
    assert world.get("deployment", f"{NAME}-engine", NAMESPACE)["spec"]["template"] == before

    world.apply(manifest(NAME, NAMESPACE))
    until(lambda: adapters(world) is None)
    assert condition(world) == ("", "")
    assert not world.kubectl("get", "configmaps", "-n", NAMESPACE, "-l", "fairlead.dev/llmdeployment").strip()
    world.kubectl("delete", "pod", "a", "-n", NAMESPACE, "--force", "--grace-period=0")


def test_an_adapter_name_that_an_older_deployment_holds_is_reported(
    world: Any, start_operator: Any, manifest: Any
) -> None:
    home = "adapter-names"
    world.kubectl("create", "namespace", home)
    start_operator(world.service_account(home, home), f"--namespace={home}", f"--lease-namespace={home}")
    world.apply(manifest("older", home, model={"uri": "a/b", "servedNames": ["french"]}))
    until(lambda: world.condition("older", "Ready", home))

    world.apply(manifest("younger", home, adapters=[FRENCH]))

    taken = until(lambda: world.condition("younger", "NameTaken", home))
    assert "french is held by adapter-names/older" in taken["message"]
    # This operator has no admin key.
    assert world.condition("younger", "Stalled", home)["reason"] == "NoAdminKey"
