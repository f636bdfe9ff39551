"""Start and end of a server process."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest
from waiting import until

STORY: dict[str, Any] = {
    "model": "smollm2",
    "prompt": "Once upon a time",
    "temperature": 0,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
HELLO = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}


def test_refuses_requests_while_loading_and_finishes_them_while_draining(
    start_server: Callable[..., Any],
) -> None:
    server = start_server()
    loading = server.get("/ready")
    assert loading.status == 503
    assert loading.json == {"status": "loading", "phase": "import", "percent": 0, "seconds": {}}
    assert server.get("/health").status == 200
    refused = server.post("/v1/completions", {"model": "smollm2", "prompt": "Hello"})
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) > 0
    assert "import" in refused.error["message"]

    server.wait_for_line("^phase ready ")
    ready = server.get("/ready")
    assert ready.status == 200
    assert list(ready.json["seconds"]) == ["import", "load", "warm up"]
    phases = [line.split(" ")[1:-2] for line in server.lines if line.startswith("phase ")]
    assert phases == [["import"], ["load"], ["warm", "up"], ["ready"]]
    metrics = server.get("/metrics").body.decode()
    for phase in ("import", "load", "warm up", "ready"):
        assert f'fairlead:startup_seconds{{phase="{phase}"}} ' in metrics

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


def test_health_fails_for_a_hung_core_under_load_and_process_exits_for_a_dead_one(
    start_server: Callable[..., Any],
) -> None:
    server = start_server("--hang-timeout=2")
    server.wait_for_line("^phase ready ")
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
    assert server.metric("fairlead:core_stalled_seconds") > 2
    assert not statuses
    server.core.send_signal(signal.SIGCONT)
    until(lambda: server.get("/health").status == 200)
    for post in posts:
        post.join(60)
    assert statuses == [200] * 100
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
    assert server.process.wait(30) == 1
    server.wait_for_line("the engine is dead: .*SIGKILL")


@pytest.mark.parametrize(
    ("model", "said"),
    [("/no/such/folder", "/no/such/folder"), ("gopher://model", "gopher")],
)
def test_missing_model_ends_the_process_with_a_message(
    start_server: Callable[..., Any], model: str, said: str
) -> None:
    server = start_server(model=model)
    assert server.process.wait(60) == 1
    server.wait_for_line(f"^fairlead engine: .*{said}")
    assert not any("Traceback" in line for line in server.lines)
