"""A server with keys, an admin port, a root path, CORS for one origin and a JSON access log."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from local_server import serving
from waiting import until

from engine_server.contract.wire.headers import LOAD

REQUEST = {"model": "smollm2", "prompt": "Hello", "max_tokens": 2}
KEY = {"Authorization": "Bearer of-environment"}
FILE_KEY = {"X-Api-Key": "of-file"}
ADMIN = {"Authorization": "Bearer of-admin"}
TEXT = {"Content-Type": "text/plain"}
# JSON that takes long to parse.
DEEP = b"[" * 300_000
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


@contextmanager
def serve(folder: Path, *flags: str, ready: bool = True) -> Iterator[Guarded]:
    keys, admin_keys = folder / "keys", folder / "admin-keys"
    keys.write_text("of-file\n")
    admin_keys.write_text("of-admin\n")
    with serving(
        f"--api-key-file={keys}",
        "--enable-admin",
        "--admin-port=0",
        f"--admin-key-file={admin_keys}",
        "--root-path=/models/small",
        '--allowed-origins=["https://page.example"]',
        *flags,
        environment={"VLLM_API_KEY": "of-environment"},
        ready=ready,
    ) as server:
        yield Guarded(server, server.admin, keys)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with serve(tmp_path_factory.mktemp("keys")) as guarded:
        yield guarded


def test_keys_are_required_from_the_start_on(tmp_path: Path) -> None:
    with serve(tmp_path, ready=False) as loading:
        for path in ("/v1/models", "/no/such/path"):
            assert loading.api.request("GET", path, None, WRONG).status == 401
        assert loading.api.get("/health").status == 200
        assert loading.api.get("/ready").json["status"] == "loading"
        refused = loading.api.request("POST", "/v1/completions", b"x", KEY | TEXT)
        assert (refused.status, refused.error["code"]) == (503, "loading")
        assert LOAD.lower() not in refused.headers
        assert loading.admin.request("GET", "/is_sleeping").status == 401
        assert loading.admin.request("GET", "/is_sleeping", None, ADMIN).status == 503


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


def test_key_is_checked_before_the_content_type_and_that_before_the_body(guarded: Guarded) -> None:
    origin = {"Origin": "https://page.example"}
    without_key = guarded.api.request("POST", "/v1/completions", DEEP, TEXT | origin)
    assert without_key.status == 401
    assert without_key.headers["access-control-allow-origin"] == "https://page.example"
    assert LOAD.lower() not in without_key.headers
    of_text = guarded.api.request("POST", "/v1/completions", DEEP, TEXT | origin | KEY)
    assert of_text.status == 415
    assert of_text.headers["access-control-allow-origin"] == "https://page.example"
    assert LOAD.lower() in of_text.headers
    assert guarded.api.request("POST", "/v1/completions", DEEP, KEY).status == 400


def test_admin_api_does_not_check_the_content_type(guarded: Guarded) -> None:
    untyped, typed = (
        guarded.admin.request("POST", "/reset_prefix_cache", None, ADMIN | content_type)
        for content_type in ({}, TEXT)
    )
    assert (typed.status, typed.body) == (untyped.status, untyped.body)
    assert typed.status != 415


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


def test_access_log_is_json_without_prompts_keys_and_unlogged_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headers = KEY | {"X-Request-Id": "logged-1"}
    body = {**REQUEST, "prompt": "a very private prompt"}
    wrong = KEY | {"X-Request-Id": "logged-2"}
    text = ""

    def logged() -> bool:
        nonlocal text
        text += capsys.readouterr().err
        return "logged-2" in text

    flags = "--access-log-format=json", "--disable-access-log-for-endpoints=/version"
    with serve(tmp_path, *flags) as guarded:
        assert guarded.api.request("POST", "/v1/completions", body, headers).status == 200
        assert guarded.api.request("GET", "/version", None, KEY | {"X-Request-Id": "unlogged"}).status == 200
        assert guarded.api.request("GET", "/v1/models/private", None, wrong).status == 404
        until(logged)
    entries = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    lines = {entry["request_id"]: entry for entry in entries}
    entry = lines["logged-1"]
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/completions", 200)
    assert entry["seconds"] > 0
    assert lines["logged-2"]["path"] == "/v1/models/{name:path}"
    assert "unlogged" not in lines
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


def test_adapters_need_an_engine_that_takes_them(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    body = {"lora_name": "name", "lora_path": str(tmp_path)}
    content = ADMIN | {"Content-Type": "application/json"}
    answer = guarded.admin.request("POST", "/v1/load_lora_adapter", body, content)
    assert answer.status == 400 and "without enable_lora" in answer.error["message"]
    assert guarded.admin.request("POST", "/v1/unload_lora_adapter", body, content).status == 404
