"""Router processes on the API server, and an engine that answers when it is told to."""

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes_objects import endpoint, slice_of
from waiting import until

NAMESPACE = "scaling"
FLAGS = (
    f"--namespace={NAMESPACE}",
    f"--lease-namespace={NAMESPACE}",
    f"--router-service={NAMESPACE}/routers",
)


def own_address() -> str:
    """Return an address of this machine that is not loopback, which EndpointSlices may not contain."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent.
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


class Router:
    """A router process that follows the namespace of these tests."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        flags = ["--host=0.0.0.0", "--port=0", "--metrics-port=0", "--kubernetes", f"--namespace={NAMESPACE}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine_server.cli", "router", *flags, f"--kubeconfig={kubeconfig}"],
                stderr=output,
            )
        self.port = self._port(log, "listening on ")
        self.metrics_port = self._port(log, "metrics are on ")

    def _port(self, log: Path, words: str) -> int:
        found = until(lambda: re.search(words + r"http://\S+?:(\d+)", log.read_text()))
        assert found is not None
        return int(found[1])

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

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


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
        threading.Thread(target=self.serve_forever, daemon=True).start()


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
        self.routers = routers
        self.engine = Engine()

    def kubectl(self, *arguments: str, stdin: object = None) -> str:
        return str(self.world.kubectl(*arguments, "-n", NAMESPACE, stdin=stdin))

    def apply(self, manifest: Any, name: str, replicas: int, **autoscaling: int) -> None:
        """Apply an LLMDeployment, and wait until every router knows it."""
        self.world.apply(manifest(name, NAMESPACE, replicas=replicas, autoscaling=autoscaling))
        for router in self.routers:
            until(lambda router=router: f'"{name}"' in page(router.metrics_port, "/internal/demand"))

    def replicas(self, name: str) -> int:
        return int(self.world.get("llmd", name, NAMESPACE)["spec"]["replicas"])

    def scale(self, name: str, replicas: int) -> None:
        self.kubectl("scale", f"llmd/{name}", f"--replicas={replicas}")

    def make_ready(self, name: str, replicas: int) -> None:
        """Report ready replicas, as the Deployment's controller does, and one address for all of them."""
        until(lambda: self.world.get("deployment", f"{name}-engine", NAMESPACE))
        status = {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas}
        self.world.set_status("deployment", f"{name}-engine", status, NAMESPACE)
        pods = [endpoint(own_address(), f"{name}-pod", ready=True, serving=True)] if replicas else []
        engine = slice_of(name, f"{name}-1", *pods)
        engine["ports"] = [{"name": "http", "port": self.engine.server_port}]
        self.kubectl("apply", "-f", "-", stdin=engine)


def page(port: int, path: str) -> str:
    """Return a page of an internal port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return str(response.read().decode())


@pytest.fixture(scope="session")
def scaling(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaling]:
    """Run two routers behind the Service `routers`."""
    world.kubectl("create", "namespace", NAMESPACE)
    folder = tmp_path_factory.mktemp("routers")
    routers = [Router(world.api_server.kubeconfig, folder / f"router{number}.log") for number in range(2)]
    for number, router in enumerate(routers):
        listed = slice_of("", f"routers-{number}", endpoint(own_address(), f"router-{number}", ready=True))
        listed["metadata"] |= {"namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "routers"}}
        listed["ports"] = [{"name": "metrics", "port": router.metrics_port}]
        world.apply(listed)
    scaling = Scaling(world, routers)
    yield scaling
    scaling.engine.shutdown()
    scaling.engine.server_close()
    for router in routers:
        router.resume()
        router.process.kill()
        router.process.wait()


@pytest.fixture(scope="session")
def account(world: Any, scaling: Scaling) -> Path:
    """Return a kubeconfig with the rights that the chart gives the operator."""
    return Path(world.service_account(NAMESPACE, NAMESPACE))


@pytest.fixture
def start_scaler(account: Path, start_operator: Any) -> Any:
    """Return a function that starts an operator that scales by the routers."""

    def start() -> Any:
        operator = start_operator(account, *FLAGS)
        until(lambda: operator.logged(f"{NAMESPACE}/fairlead-operator"), "it holds the Lease or stands by")
        return operator

    return start


@pytest.fixture(scope="module")
def scaler(account: Path, run_operator: Any) -> Iterator[Any]:
    """Run one operator that scales by the routers for all tests of a module."""
    with run_operator(account, *FLAGS) as running:
        until(lambda: running.logged(f"holds {NAMESPACE}/fairlead-operator"))
        yield running


@pytest.fixture
def requests(scaling: Scaling) -> Iterator[Requests]:
    """Requests that are all answered at the end of the test."""
    scaling.engine.gate.clear()
    sent = Requests()
    yield sent
    scaling.engine.gate.set()
    sent.join()
