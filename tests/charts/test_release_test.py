"""The request of `helm test`, sent through a real router to an engine that answers one sentence.

With a real embedding model: tests/server/api/pooling/test_embeddings.py.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

SCRIPT = Path(__file__).parents[2] / "charts/fairlead/files/request_a_model.py"


class Engine(BaseHTTPRequestHandler):
    """Answers probes and completions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer({"status": "ready"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"choices": [{"text": " blue."}]})

    def answer(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def running_router(*source: str) -> Iterator[str]:
    flags = ["--host=127.0.0.1", "--port=0", "--metrics-port=0", *source]
    command = [sys.executable, "-m", "engine_server.cli", "router", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(filter(None, (re.search(r"listening on (\S+)", line) for line in process.stderr)))
        yield address[1]
        process.kill()


@pytest.fixture(scope="module")
def router(engine: str) -> Iterator[str]:
    with running_router("--endpoint", f"smollm2={engine}") as address:
        yield address


@pytest.fixture(scope="module")
def router_without_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("endpoints") / "endpoints.json"
    file.write_text('{"deployments": []}')
    with running_router("--endpoints-file", str(file)) as address:
        yield address


def run(router: str, model: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"ROUTER": router, "MODEL": model, "TIMEOUT": "30"}
    return subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("model", ["", "smollm2"])
def test_succeeds_when_a_model_answers(router: str, model: str) -> None:
    done = run(router, model)
    answer = 'smollm2 answered at /v1/completions: {"choices": [{"text": " blue."}]}'
    assert (done.returncode, done.stdout.strip()) == (0, answer)


def test_succeeds_before_there_is_a_model(router_without_models: str) -> None:
    done = run(router_without_models)
    assert (done.returncode, done.stdout.strip()) == (0, "the router answers, and lists no model yet")


def test_fails_without_the_model_that_is_asked_for(router_without_models: str) -> None:
    done = run(router_without_models, "smollm2")
    assert done.returncode == 1
    assert "404" in done.stderr and "smollm2" in done.stderr


def test_fails_with_the_routers_reason_for_an_unknown_model(router: str) -> None:
    done = run(router, "other")
    assert done.returncode == 1
    assert "404" in done.stderr and "smollm2" in done.stderr
    assert "Traceback" not in done.stderr


def test_fails_without_a_router() -> None:
    done = run("http://127.0.0.1:1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
