"""A server with keys, an admin port, a root path, CORS for one origin and a JSON access log."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from waiting import until

REQUEST = {"model": "smollm2", "prompt": "Hello", "max_tokens": 2}
STORY: dict[str, Any] = {**REQUEST, "stream": True, "extra_body": {"ignore_eos": True}}
KEY = {"Authorization": "Bearer of-environment"}
FILE_KEY = {"X-Api-Key": "of-file"}
ADMIN = {"Authorization": "Bearer of-admin"}
WRONG = {"Authorization": "Bearer wrong", "x-api-key": "wrong"}
ADMIN_PATHS = (
    "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/reset_prefix_cache", "/start_profile",
    "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
)  # fmt: skip


class Guarded(NamedTuple):
    """The server, its admin port as a server of its own, and the file with its keys."""

    api: Any
    admin: Any
    keys: Path


@pytest.fixture(scope="module")
def guarded(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("keys")
    keys, admin_keys = folder / "keys", folder / "admin-keys"
    keys.write_text("of-file\n")
    admin_keys.write_text("of-admin\n")
    server = start_server(
        f"--api-key-file={keys}",
        "--drain-grace=0",
        "--enable-admin",
        "--admin-port=0",
        f"--admin-key-file={admin_keys}",
        "--root-path=/models/small",
        '--allowed-origins=["https://page.example"]',
        "--access-log-format=json",
        "--disable-access-log-for-endpoints=/version",
        f"--torch-profiler-dir={folder}",
        environment={"VLLM_API_KEY": "of-environment"},
    )
    port = int(server.wait_for_line(r"admin API listening on http://127\.0\.0\.1:(\d+)")[1])
    admin = type(server)(server.process, port=port)
    yield Guarded(server, admin, keys)
    assert server.end(signal.SIGTERM) == 0


def test_keys_are_required_from_the_start_on(guarded: Guarded) -> None:
    """The first test: the model is still loading."""
    for path in ("/v1/models", "/no/such/path"):
        assert guarded.api.request("GET", path, None, WRONG).status == 401
    assert guarded.api.get("/health").status == 200
    assert guarded.api.get("/ready").json["status"] == "loading"
    assert guarded.admin.request("GET", "/is_sleeping").status == 401
    assert guarded.admin.request("GET", "/is_sleeping", None, ADMIN).status == 503
    guarded.api.wait_for_line("^phase ready ")


@pytest.mark.parametrize("headers", [{}, WRONG, ADMIN, {"Authorization": "Basic of-environment"}])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/models", "//v1/models", "/v1/../v1/models", "/%76%31/models", "/models/small/v1/models",
        "/models/small/models/small/v1/models", "/version", "/openapi.json", "/docs", "/no/such/path", "/health/",
        "/health/../v1/models", "/health%2f..%2fv1/models", "/health;/v1/models", "/health%00", "/metrics/../v1/models",
        "/models/small/models/small/health",
    ],
)  # fmt: skip
def test_request_without_a_key_is_refused_whatever_its_path(
    guarded: Guarded, path: str, headers: dict[str, str]
) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        answer = guarded.api.request(method, path, None, headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    error = guarded.api.request("GET", path, None, headers).error
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert "x-api-key" in error["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/models/small/health", "/%68ealth"])
def test_probes_and_metrics_take_no_key(guarded: Guarded, path: str) -> None:
    assert guarded.api.get(path).status == 200


@pytest.mark.parametrize("headers", [KEY, FILE_KEY, {"x-api-key": "of-environment"}])
def test_every_key_is_accepted_in_both_headers(guarded: Guarded, headers: dict[str, str]) -> None:
    assert guarded.api.request("GET", "/v1/models", None, headers).status == 200
    assert guarded.api.request("POST", "/v1/completions", REQUEST, headers).status == 200
    assert guarded.api.request("GET", "/no/such/path", None, headers).status == 404


def test_openai_client_is_refused_and_accepted_by_its_key(guarded: Guarded) -> None:
    def models(key: str) -> list[str]:
        with openai.OpenAI(base_url=f"{guarded.api.url}/v1", api_key=key, max_retries=0) as client:
            return [model.id for model in client.models.list()]

    assert models("of-file")
    with pytest.raises(openai.AuthenticationError, match="no valid API key"):
        models("wrong")


def test_key_file_is_read_again_when_it_changes(guarded: Guarded) -> None:
    new = {"x-api-key": "new"}
    assert guarded.api.request("GET", "/version", None, new).status == 401
    guarded.keys.write_text("of-file\nnew\n")
    until(lambda: guarded.api.request("GET", "/version", None, new).status == 200)
    guarded.keys.write_text("of-file\n")
    until(lambda: guarded.api.request("GET", "/version", None, new).status == 401)


def test_root_path_is_accepted_before_every_path(guarded: Guarded) -> None:
    assert guarded.api.request("POST", "/models/small/v1/completions", REQUEST, KEY).status == 200
    document = guarded.api.request("GET", "/models/small/openapi.json", None, KEY).json
    assert document["servers"] == [{"url": "/models/small"}]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "x-api-key"}


def test_preflight_takes_no_key_and_only_the_allowed_origin_may_read(guarded: Guarded) -> None:
    origin = {"Origin": "https://page.example"}
    preflight = {
        **origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    allowed = guarded.api.request("OPTIONS", "/v1/completions", None, preflight)
    assert allowed.status == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert "x-api-key" in allowed.headers["access-control-allow-headers"]
    answer = guarded.api.request("GET", "/v1/models", None, KEY | origin)
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    refused = guarded.api.request("GET", "/v1/models", None, origin)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://page.example")
    other = {"Origin": "https://other.example"}
    assert guarded.api.request("OPTIONS", "/v1/completions", None, preflight | other).status == 400
    assert "access-control-allow-origin" not in guarded.api.request("GET", "/health", None, other).headers


def test_access_log_is_json_without_prompts_keys_and_unlogged_paths(guarded: Guarded) -> None:
    headers = KEY | {"X-Request-Id": "logged-1"}
    body = {**REQUEST, "prompt": "a very private prompt"}
    assert guarded.api.request("POST", "/v1/completions", body, headers).status == 200
    assert guarded.api.request("GET", "/version", None, KEY | {"X-Request-Id": "unlogged"}).status == 200
    assert (
        guarded.api.request("GET", "/v1/models/private", None, KEY | {"X-Request-Id": "logged-2"}).status
        == 404
    )
    guarded.api.wait_for_line("logged-2")
    lines = {
        entry["request_id"]: entry
        for line in guarded.api.lines
        if line.startswith('{"time"')
        for entry in [json.loads(line)]
    }
    entry = lines["logged-1"]
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/completions", 200)
    assert entry["seconds"] > 0
    assert lines["logged-2"]["path"] == "/v1/models/{name:path}"
    assert "unlogged" not in lines
    text = "\n".join(guarded.api.lines)
    for secret in ("private", "of-environment", "of-file", "of-admin"):
        assert secret not in text


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_public_port_has_no_admin_endpoint(guarded: Guarded, path: str) -> None:
    for method in ("GET", "POST"):
        for headers in (KEY, KEY | {"x-api-key": "of-admin"}):
            assert guarded.api.request(method, path, None, headers).status == 404


@pytest.mark.parametrize("path", [*ADMIN_PATHS, "/no/such/path", "/health"])
def test_admin_port_takes_the_admin_key_alone(guarded: Guarded, path: str) -> None:
    for headers in ({}, KEY, FILE_KEY, WRONG):
        for method in ("GET", "POST"):
            assert guarded.admin.request(method, path, None, headers).status == 401


def admin(guarded: Guarded, method: str, path: str) -> Any:
    return guarded.admin.request(method, path, None, ADMIN)


def test_engine_sleeps_and_wakes_by_its_tags(guarded: Guarded) -> None:
    before = guarded.api.request("POST", "/v1/completions", {**REQUEST, "temperature": 0}, KEY).json
    assert admin(guarded, "GET", "/is_sleeping").json == {"is_sleeping": False}
    assert admin(guarded, "POST", "/sleep?level=1").status == 200
    assert admin(guarded, "GET", "/is_sleeping").json == {"is_sleeping": True}
    assert admin(guarded, "POST", "/wake_up?tags=weights").status == 200
    assert admin(guarded, "GET", "/is_sleeping").json == {"is_sleeping": True}
    assert admin(guarded, "POST", "/wake_up?tags=kv_cache&tags=weights").status == 200
    assert admin(guarded, "GET", "/is_sleeping").json == {"is_sleeping": False}
    after = guarded.api.request("POST", "/v1/completions", {**REQUEST, "temperature": 0}, KEY).json
    assert after["choices"] == before["choices"]


def test_paused_engine_keeps_requests_until_it_is_resumed(guarded: Guarded) -> None:
    with openai.OpenAI(base_url=f"{guarded.api.url}/v1", api_key="of-file", max_retries=0) as client:
        stream = client.completions.create(**STORY | {"max_tokens": 20})
        next(stream)
        assert admin(guarded, "POST", "/pause?mode=keep").json == {"status": "paused"}
        assert admin(guarded, "GET", "/is_paused").json == {"is_paused": True}
        assert admin(guarded, "POST", "/reset_prefix_cache").status == 409
        assert admin(guarded, "POST", "/reset_prefix_cache?reset_running_requests=true").status == 200
        assert admin(guarded, "POST", "/resume").json == {"status": "resumed"}
        assert admin(guarded, "GET", "/is_paused").json == {"is_paused": False}
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"


def test_pause_aborts_requests_by_default(guarded: Guarded) -> None:
    with openai.OpenAI(base_url=f"{guarded.api.url}/v1", api_key="of-file", max_retries=0) as client:
        stream = client.completions.create(
            **REQUEST | {"max_tokens": 900}, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        assert admin(guarded, "POST", "/pause").status == 200
        with pytest.raises(openai.APIError):
            list(stream)
        assert admin(guarded, "POST", "/resume").status == 200


def test_profile_is_written(guarded: Guarded) -> None:
    assert admin(guarded, "POST", "/stop_profile").status == 409
    assert admin(guarded, "POST", "/start_profile").status == 200
    assert admin(guarded, "POST", "/start_profile").status == 409
    assert guarded.api.request("POST", "/v1/completions", REQUEST, KEY).status == 200
    assert admin(guarded, "POST", "/stop_profile").status == 200
    assert list(guarded.keys.parent.glob("*.json.gz"))


def test_adapters_need_an_engine_that_takes_them(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    body = {"lora_name": "name", "lora_path": str(tmp_path)}
    content = ADMIN | {"Content-Type": "application/json"}
    answer = guarded.admin.request("POST", "/v1/load_lora_adapter", body, content)
    assert answer.status == 400 and "without enable_lora" in answer.error["message"]
    assert guarded.admin.request("POST", "/v1/unload_lora_adapter", body, content).status == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/sleep?level=3", "level"),
        ("/sleep?level=one", "level"),
        ("/sleep?mode=abort", "keep"),
        ("/sleep?lvl=1", "no parameter 'lvl'"),
        ("/wake_up?tags=all", "kv_cache"),
        ("/pause?mode=drop", "abort"),
        ("/pause?clear_cache=perhaps", "clear_cache"),
        ("/reset_prefix_cache?reset_external=true", "no parameter 'reset_external'"),
        ("/resume?now=1", "no parameter 'now'"),
    ],
)
def test_wrong_admin_parameter_is_named(guarded: Guarded, path: str, said: str) -> None:
    answer = admin(guarded, "POST", path)
    assert answer.status == 400
    assert said in answer.error["message"]
    assert admin(guarded, "GET", "/is_sleeping").json == {"is_sleeping": False}
