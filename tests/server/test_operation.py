"""The endpoints for probes, dashboards and clients that list models."""

from importlib.metadata import version
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import until


def test_health_readiness_and_version_answer(server: Any) -> None:
    assert (server.get("/health").status, server.get("/health").json) == (200, {"status": "alive"})
    assert (server.get("/ready").status, server.get("/ready").json) == (200, {"status": "ready"})
    assert server.get("/version").json == {"version": version("fairlead")}


def test_models_lists_every_served_name(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["smollm2", "second-name"]
    assert models[1].model_extra
    assert models[1].model_extra["max_model_len"] == 1024
    assert client.models.retrieve("second-name") == models[1]
    with pytest.raises(openai.NotFoundError, match="second-name"):
        client.models.retrieve("third/name")


def test_answer_carries_the_served_name_of_the_request(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="second-name", prompt="Hello", max_tokens=1)
    assert answer.model == "second-name"


def test_metrics_count_requests_and_tokens(server: Any) -> None:
    generated = server.metric("vllm:generation_tokens_total")
    prompts = server.metric("vllm:prompt_tokens_total")
    answer = server.post("/v1/completions", {"model": "smollm2", "prompt": "Hello there", "max_tokens": 5})
    usage = answer.json["usage"]
    assert server.metric("vllm:generation_tokens_total") == generated + usage["completion_tokens"]
    assert server.metric("vllm:prompt_tokens_total") == prompts + usage["prompt_tokens"]
    families = {
        family.name: family for family in text_string_to_metric_families(server.get("/metrics").body.decode())
    }
    handlers = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"])
        for sample in families["http_requests"].samples
    }
    assert ("/v1/completions", "POST", "200") in handlers
    assert not any(handler in ("/health", "/ready", "/metrics") for handler, _, _ in handlers)
    assert families["http_request_duration_seconds"].samples
    assert families["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"


def test_request_id_is_kept_or_generated(server: Any) -> None:
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}
    given = server.request("POST", "/v1/completions", body, {"X-Request-Id": "order-66"})
    assert given.headers["x-request-id"] == "order-66"
    server.wait_for_line(r"POST /v1/completions 200 .* order-66$")
    made = [server.post("/v1/completions", body).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    odd = server.request("GET", "/v1/models", None, {"X-Request-Id": "with blank"})
    assert odd.headers["x-request-id"] != "with blank"


def test_same_request_id_on_two_requests_in_flight_is_accepted(server: Any, client: openai.OpenAI) -> None:
    headers = {"X-Request-Id": "twice"}
    request: dict[str, Any] = {"model": "smollm2", "prompt": "Hello", "extra_headers": headers}
    with client.completions.create(**request, max_tokens=500, stream=True) as stream:
        next(stream)
        assert client.completions.create(**request, max_tokens=1).choices[0].text


def test_engine_span_continues_the_clients_trace(server: Any, collector: tuple[str, list[Any]]) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"model": "smollm2", "prompt": ["Hello", "Good"], "max_tokens": 2}
    assert server.request("POST", "/v1/completions", body, headers).status == 200
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 2}
    assert server.request("POST", "/v1/chat/completions", body, headers).status == 200
    until(lambda: len(collector[1]) == 3)
    assert {span.trace_id.hex() for span in collector[1]} == {trace}
