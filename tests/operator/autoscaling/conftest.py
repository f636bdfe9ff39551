"""Routers on the API server, and an engine that answers when it is told to."""

import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kubernetes_objects import endpoint, slice_of
from llm_operator.autoscaling import autoscaler, routers
from waiting import until

from engine_server.router.callers.callers import Callers
from engine_server.router.server import Server, Settings
from engine_server.router.sources.kubernetes.access import from_kubeconfig
from engine_server.router.sources.kubernetes.source import KubernetesSource


def own_address() -> str:
    """Return an address of this machine that is not loopback, which EndpointSlices may not contain."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent.
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


class Router:
    """A router in a thread of its own, which follows a namespace with the rights of a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._source = KubernetesSource(from_kubeconfig(kubeconfig), [namespace])
        self._is_resumed = threading.Event()
        self._ports: Future[tuple[int, int]] = Future()
        self._thread = threading.Thread(target=self._run, name="router")
        self._thread.start()
        self.port, self.metrics_port = self._ports.result(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        settings = Settings(port=0, metrics_port=0, drain_timeout=0)
        self._server = Server(settings, [], [self._source], Callers(None, None))
        await self._server.run(lambda *ports: self._ports.set_result(ports))

    def ask(self, model: str) -> int:
        """Send a request and return the status of its answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            f'{{"model": "{model}", "prompt": "x"}}'.encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            response.read()
            return int(response.status)

    def demand(self) -> dict[str, dict[str, Any]]:
        """Return what the operator reads, by the names of deployments."""
        address = f"http://127.0.0.1:{self.metrics_port}/internal/demand"
        with urllib.request.urlopen(address, timeout=30) as response:
            return {entry["name"]: entry for entry in json.load(response)["deployments"]}

    def pause(self) -> None:
        """Do nothing until `resume`, and accept connections, as a process does that is stopped."""
        self._is_resumed.clear()
        self._loop.call_soon_threadsafe(self._is_resumed.wait)

    def resume(self) -> None:
        self._is_resumed.set()

    def stop(self) -> None:
        self.resume()
        self._loop.call_soon_threadsafe(self._server.leave, 0.0)
        self._thread.join()


class Requests:
    """Requests in threads, and the statuses of their answers."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self._threads: list[threading.Thread] = []

    def send(self, router: Router, model: str, count: int = 1) -> None:
        def ask() -> None:
            self.statuses.append(router.ask(model))

        for _ in range(count):
            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> list[int]:
        """Wait for all answers, and return their statuses."""
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        return self.statuses


class Engine(ThreadingHTTPServer):
    """An engine that answers while its gate is open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("0.0.0.0", 0), Handler)
        self.gate = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Answers every request with an empty object."""

    protocol_version = "HTTP/1.1"
    server: Engine

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.gate.wait(120)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None: ...


class Scaling:
    """The namespace of these tests: its LLMDeployments, their engine, and the routers."""

    def __init__(self, world: Any, routers: list[Router]) -> None:
        self.world = world
        self.namespace: str = world.namespace
        self.routers = routers
        self.engine = Engine()

    def apply(self, manifest: Any, name: str, replicas: int, **autoscaling: int) -> None:
        """Apply an LLMDeployment, and wait until every router knows it."""
        self.world.apply(manifest(name, self.namespace, replicas=replicas, autoscaling=autoscaling))
        for router in self.routers:
            until(lambda router=router: name in router.demand())

    def replicas(self, name: str) -> int:
        return int(self.world.get("llmd", name)["spec"]["replicas"])

    def deployed_replicas(self, name: str) -> int:
        """Return the replicas that the operator asks the Deployment for."""
        return int(self.world.get("deployment", f"{name}-engine")["spec"]["replicas"])

    def scale(self, name: str, replicas: int) -> None:
        self.world.scale("llmd", name, replicas)

    def make_ready(self, name: str, replicas: int) -> None:
        """Report ready replicas, as the Deployment's controller does, and one address for all of them."""
        until(lambda: self.world.get("deployment", f"{name}-engine"))
        status = {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}
        self.world.set_status("deployment", f"{name}-engine", status)
        pods = [endpoint(own_address(), f"{name}-pod", ready=True, serving=True)] if replicas else []
        engine = slice_of(name, f"{name}-1", *pods)
        engine["ports"] = [{"name": "http", "port": self.engine.server_port}]
        self.world.apply(engine)


@pytest.fixture(scope="module")
def scaling(world: Any) -> Iterator[Scaling]:
    """Run two routers behind the Service `routers`."""
    started = [Router(world.kubeconfig, world.namespace) for _ in range(2)]
    for number, router in enumerate(started):
        listed = slice_of("", f"routers-{number}", endpoint(own_address(), f"router-{number}", ready=True))
        listed["metadata"]["labels"] = {"kubernetes.io/service-name": "routers"}
        listed["ports"] = [{"name": "metrics", "port": router.metrics_port}]
        world.apply(listed)
    scaling = Scaling(world, started)
    yield scaling
    scaling.engine.shutdown()
    scaling.engine.server_close()
    for router in started:
        router.stop()


@pytest.fixture(scope="module", autouse=True)
def _decides_often() -> Iterator[None]:
    """Make operators decide, look for routers and give up on them sooner."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(autoscaler, "INTERVAL_SECONDS", 0.2)
        patched.setattr(routers, "LIST_SECONDS", 1.0)
        patched.setattr(routers, "PATIENCE_SECONDS", 2.0)
        yield


@pytest.fixture(scope="module")
def scaler_flags(scaling: Scaling) -> tuple[str, ...]:
    """Flags of an operator that scales by the routers."""
    home = scaling.namespace
    return f"--namespace={home}", f"--lease-namespace={home}", f"--router-service={home}/routers"


@pytest.fixture
def start_scaler(world: Any, scaler_flags: tuple[str, ...], start_operator: Any) -> Any:
    """Return a function that starts an operator that scales by the routers."""
    return partial(start_operator, world.service_account(), *scaler_flags)


@pytest.fixture(scope="module")
def scaler(world: Any, scaler_flags: tuple[str, ...], run_operator: Any) -> Iterator[Any]:
    """Run one operator that scales by the routers for all tests of a module."""
    with run_operator(world.service_account(), *scaler_flags) as running:
        yield running


@pytest.fixture
def requests(scaling: Scaling) -> Iterator[Requests]:
    """Requests that are all answered at the end of the test."""
    scaling.engine.gate.clear()
    sent = Requests()
    yield sent
    scaling.engine.gate.set()
    sent.join()
