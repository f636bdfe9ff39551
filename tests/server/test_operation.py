"""The endpoints for probes, dashboards and clients that list models."""

import json
import logging
import re
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from waiting import until

from engine_server.contract.base.version import VERSION
from engine_server.contract.wire.paths import MODEL_PATHS
from engine_server.server.api.operation import PROBES


def test_health_readiness_and_version_answer(scripted: Any) -> None:
    assert (scripted.get("/health").status, scripted.get("/health").json) == (200, {"status": "alive"})
    assert (scripted.get("/ready").status, scripted.get("/ready").json["status"]) == (200, "ready")
    assert scripted.get("/version").json == {"version": VERSION}


def test_models_lists_every_served_name(scripted_client: openai.OpenAI) -> None:
    models = scripted_client.models.list().data
    assert [model.id for model in models] == ["smollm2", "second-name"]
    assert models[1].model_extra
    assert models[1].model_extra["max_model_len"] == 1024
    assert scripted_client.models.retrieve("second-name") == models[1]
    with pytest.raises(openai.NotFoundError, match="second-name"):
        scripted_client.models.retrieve("third/name")


def test_answer_carries_the_served_name_of_the_request(scripted_client: openai.OpenAI) -> None:
    answer = scripted_client.completions.create(model="second-name", prompt="Hello", max_tokens=1)
    assert answer.model == "second-name"


def test_metrics_count_requests_and_tokens(scripted: Any) -> None:
    generated = scripted.metric("vllm:generation_tokens_total")
    prompts = scripted.metric("vllm:prompt_tokens_total")
    answer = scripted.post("/v1/completions", {"model": "smollm2", "prompt": "Hello there", "max_tokens": 5})
    usage = answer.json["usage"]
    assert scripted.metric("vllm:generation_tokens_total") == generated + usage["completion_tokens"]
    assert scripted.metric("vllm:prompt_tokens_total") == prompts + usage["prompt_tokens"]
    families = {
        family.name: family
        for family in text_string_to_metric_families(scripted.get("/metrics").body.decode())
    }
    handlers = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"])
        for sample in families["http_requests"].samples
    }
    assert ("/v1/completions", "POST", "200") in handlers
    assert not any(handler in ("/health", "/ready", "/metrics") for handler, _, _ in handlers)
    assert families["http_request_duration_seconds"].samples
    assert families["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"


def test_request_id_is_kept_or_generated(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}
    with caplog.at_level(logging.INFO):
        given = scripted.request("POST", "/v1/completions", body, {"X-Request-Id": "order-66"})
        assert given.headers["x-request-id"] == "order-66"
        until(lambda: re.search(r"POST /v1/completions 200 .* order-66$", caplog.text, re.M))
    made = [scripted.post("/v1/completions", body).headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    odd = scripted.request("GET", "/v1/models", None, {"X-Request-Id": "with blank"})
    assert odd.headers["x-request-id"] != "with blank"


def test_same_request_id_on_two_requests_in_flight_is_accepted(
    scripted: Any, scripted_client: openai.OpenAI
) -> None:
    headers = {"X-Request-Id": "twice"}
    request: dict[str, Any] = {"model": "smollm2", "prompt": "Hello", "extra_headers": headers}
    with (
        scripted.holding(),
        scripted_client.completions.create(**request, max_tokens=500, stream=True) as stream,
    ):
        next(stream)
        assert scripted_client.completions.create(**request, max_tokens=1).choices[0].text


def test_engine_span_continues_the_clients_trace(scripted: Any, collector: tuple[str, list[Any]]) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"model": "smollm2", "prompt": ["Hello", "Good"], "max_tokens": 2}
    assert scripted.request("POST", "/v1/completions", body, headers).status == 200
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 2}
    assert scripted.request("POST", "/v1/chat/completions", body, headers).status == 200
    until(lambda: [span.trace_id.hex() for span in collector[1]].count(trace) == 3)


def test_each_step_of_a_beam_search_continues_the_clients_trace(
    scripted: Any, collector: tuple[str, list[Any]]
) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 2, "ignore_eos": True}
    body = {"model": "smollm2", "prompt": "Hello", **fields}
    assert scripted.request("POST", "/v1/completions", body, headers).status == 200
    until(lambda: [span.trace_id.hex() for span in collector[1]].count(trace) == 3)


def test_metrics_are_in_openmetrics_format_if_asked_for(scripted: Any) -> None:
    answer = scripted.request(
        "GET", "/metrics", None, {"Accept": "application/openmetrics-text;version=1.0.0"}
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {
        family.name: family
        for family in openmetrics_parser.text_string_to_metric_families(answer.body.decode())
    }
    assert families["vllm:prompt_tokens"].samples[0].name == "vllm:prompt_tokens_total"
    plain = scripted.request("GET", "/metrics", None, {"Accept": "text/plain;version=0.0.4"})
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert not plain.body.endswith(b"# EOF\n")


def test_refused_requests_are_counted_by_their_route(scripted: Any) -> None:
    """A request that never reaches its route, as here by its content type, has the route's label too."""
    label = 'http_requests_total{handler="/v1/completions",method="POST",status="415"}'
    assert scripted.request("POST", "/v1/completions", b"x", {"Content-Type": "text/plain"}).status == 415
    assert label in scripted.get("/metrics").body.decode()


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 415),
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_body_must_be_declared_as_json(scripted: Any, content_type: str | None, status: int) -> None:
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}
    answer = scripted.request("POST", "/v1/completions", body, {"Content-Type": content_type})
    assert answer.status == status
    if status == 415:
        assert "application/json" in answer.error["message"]
        assert answer.error["code"] == "unsupported_media_type"


def test_openapi_document_describes_bodies_answers_and_errors(scripted: Any) -> None:
    document = scripted.get("/openapi.json").json
    schemas = document["components"]["schemas"]
    for path, request, answer in (
        ("/v1/chat/completions", "ChatRequest", "ChatCompletion"),
        ("/v1/completions", "CompletionRequest", "Completion"),
    ):
        operation = document["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{request}"}
        assert "model" in schemas[request]["properties"]
        whole = operation["responses"]["200"]["content"]
        assert whole["application/json"]["schema"] == {"$ref": f"#/components/schemas/{answer}"}
        assert "text/event-stream" in whole
        error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert error == {"$ref": "#/components/schemas/ErrorBody"}
        assert "422" not in operation["responses"]
    text = json.dumps(document)
    for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert name in schemas
    Draft202012Validator.check_schema(schemas["ChatRequest"])
    assert b"/openapi.json" in scripted.get("/docs").body


def test_a_router_knows_every_path_that_takes_a_model(scripted: Any) -> None:
    """Paths with parameters, which are for stored responses, name no model."""
    paths = scripted.get("/openapi.json").json["paths"]
    posts = {path for path, operations in paths.items() if "post" in operations and "{" not in path}
    assert posts - set(PROBES) == MODEL_PATHS


def test_answer_is_valid_by_the_openapi_document(scripted: Any) -> None:
    document = scripted.get("/openapi.json").json
    validator = Draft202012Validator({"$ref": "#/components/schemas/ChatCompletion", **document})
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    validator.validate(scripted.post("/v1/chat/completions", body).json)
    error = Draft202012Validator({"$ref": "#/components/schemas/ErrorBody", **document})
    error.validate(scripted.post("/v1/chat/completions", {}).json)
