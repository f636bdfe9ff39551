"""Start and end of a server process."""

import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from engine_process import EngineProcess, running_engine
from local_server import serving
from waiting import until

from engine_server.model_sources import record
from engine_server.model_sources.record import Checksums

STORY: dict[str, Any] = {
    "model": "smollm2",
    "prompt": "Once upon a time",
    "temperature": 0,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
COMMIT = "a" * 40
HELLO = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}


def test_refuses_requests_while_loading_and_finishes_them_while_draining(
    tiny_writer: Path, tmp_path: Path
) -> None:
    fetched = shutil.copytree(tiny_writer, tmp_path / "model")
    record.write(fetched, Checksums(COMMIT))
    with running_engine("--max-model-len=256", model=str(fetched)) as server:
        check_start(server)
        check_drain(server)


def check_start(server: EngineProcess) -> None:
    loading = server.get("/ready")
    assert loading.status == 503
    assert loading.json == {"status": "loading", "phase": "import", "percent": 0, "seconds": {}}
    assert server.get("/health").status == 200
    refused = server.post("/v1/completions", {"model": "smollm2", "prompt": "Hello"})
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    assert "import" in refused.error["message"]

    server.wait_until_ready()
    ready = server.get("/ready")
    assert ready.status == 200
    assert list(ready.json["seconds"]) == ["import", "load", "warm up"]
    assert ready.json["commit"] == COMMIT
    phases = [line.split(" ")[1:-2] for line in server.lines if line.startswith("phase ")]
    assert phases == [["import"], ["load"], ["warm", "up"], ["ready"]]
    metrics = server.get("/metrics").body.decode()
    for phase in ("import", "load", "warm up", "ready"):
        assert f'fairlead:startup_seconds{{phase="{phase}"}} ' in metrics


def check_drain(server: EngineProcess) -> None:
    core = server.core
    with server.client() as client:
        whole = "".join(chunk.choices[0].text for chunk in client.completions.create(**STORY, max_tokens=16))
        story = client.completions.create(**STORY, max_tokens=16)
        text = next(story).choices[0].text
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status == 503)
        assert server.get("/ready").json == {"status": "draining"}
        assert server.get("/health").status == 200
        # Routers need a moment to see it, and what they send meanwhile is served.
        late = server.post("/v1/completions", {"model": "smollm2", "prompt": "Hello", "max_tokens": 1})
        assert late.status == 200
        text += "".join(chunk.choices[0].text for chunk in story)
        assert text == whole
    assert server.process.wait(30) == 0
    assert not core.is_running()
    with pytest.raises(OSError):
        server.get("/health")


def test_health_fails_for_a_hung_core_under_load_and_process_exits_for_a_dead_one() -> None:
    with running_engine("--hang-timeout=1", scripted=True) as server:
        server.wait_until_ready()
        check_hang(server)
        check_death(server)


def check_hang(server: EngineProcess) -> None:
    server.core.send_signal(signal.SIGSTOP)
    statuses: list[int] = []
    posts = [
        threading.Thread(target=lambda: statuses.append(server.post("/v1/completions", HELLO).status))
        for _ in range(100)
    ]
    for post in posts:
        post.start()
    until(lambda: server.get("/health").status == 503)
    assert "no progress" in server.get("/health").json["reason"]
    assert server.get("/ready").json == {"status": "unhealthy"}
    assert server.metric("fairlead:core_stalled_seconds") > 1
    assert not statuses
    server.core.send_signal(signal.SIGCONT)
    until(lambda: server.get("/health").status == 200)
    for post in posts:
        post.join(60)
    assert statuses == [200] * 100


def check_death(server: EngineProcess) -> None:
    errors: list[openai.APIError] = []
    whole: list[openai.InternalServerError] = []

    def read_story() -> None:
        with server.client() as client:
            try:
                for _ in client.completions.create(**STORY, max_tokens=900):
                    pass
            except openai.APIError as error:
                errors.append(error)

    def wait_for_story() -> None:
        with server.client() as client:
            try:
                client.completions.create(**STORY | {"stream": False}, max_tokens=900)
            except openai.InternalServerError as error:
                whole.append(error)

    readers = [threading.Thread(target=read_story) for _ in range(4)] + [
        threading.Thread(target=wait_for_story)
    ]
    for reader in readers:
        reader.start()
    until(lambda: server.metric("vllm:num_requests_running") == 5)
    server.core.send_signal(signal.SIGKILL)
    for reader in readers:
        reader.join(30)
    health = server.get("/health")
    assert health.status == 503
    assert "SIGKILL" in health.json["reason"]
    assert [error.code for error in errors] == ["engine_dead"] * 4
    assert [error.status_code for error in whole] == [503]
    assert not any(
        "SIGKILL" in str(error) for error in (*errors, *whole)
    )  # the cause may quote other requests
    assert server.process.wait(30) == 1
    server.wait_for_line("the engine is dead: .*SIGKILL")


@pytest.mark.more
def test_kernels_that_cannot_run_end_the_process_with_the_reason_before_the_load(tiny_writer: Path) -> None:
    flags = ("--max-model-len=256", "--device=cpu", "--kernels=triton")
    with running_engine(*flags, model=str(tiny_writer)) as server:
        server.wait_for_line("the engine is dead: .*kernels is triton, and device is cpu")
        assert server.process.wait(30) == 1
        assert not any(line.startswith("phase load") for line in server.lines)


def test_missing_model_ends_the_process_with_a_message_and_removes_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    command = [sys.executable, "-m", "engine_server.cli", "engine", "/no/such/folder", f"--uds={path}"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 1
    assert f"listening on unix:{path}" in ended.stderr
    assert re.search(r"^fairlead engine: .*/no/such/folder", ended.stderr, re.M)
    assert "Traceback" not in ended.stderr
    assert not path.exists()


def test_model_of_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(model="gopher://model", ready=False) as server:
        assert server.join() == 1
    assert re.search("^fairlead engine: .*gopher", capsys.readouterr().err, re.M)
