"""Sleep, pause, the prefix cache and profiles over the admin API, with the real model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_client import ApiClient
from engine_process import EngineProcess

REQUEST = {"model": "smollm2", "prompt": "Hello", "max_tokens": 2}
# Takes longer than the calls that are made meanwhile.
STORY: dict[str, Any] = {**REQUEST, "max_tokens": 900, "stream": True, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def admin(server: EngineProcess) -> Iterator[ApiClient]:
    """The admin API; other modules find the engine awake."""
    yield server.admin
    for path in ("/resume", "/wake_up"):
        assert server.admin.request("POST", path).status == 200


def test_engine_sleeps_and_wakes_by_its_tags(server: EngineProcess, admin: ApiClient) -> None:
    before = server.post("/v1/completions", {**REQUEST, "temperature": 0}).json
    assert admin.request("GET", "/is_sleeping").json == {"is_sleeping": False}
    assert admin.request("POST", "/sleep?level=1").status == 200
    assert admin.request("GET", "/is_sleeping").json == {"is_sleeping": True}
    assert admin.request("POST", "/wake_up?tags=weights").status == 200
    assert admin.request("GET", "/is_sleeping").json == {"is_sleeping": True}
    assert admin.request("POST", "/wake_up?tags=kv_cache&tags=weights").status == 200
    assert admin.request("GET", "/is_sleeping").json == {"is_sleeping": False}
    after = server.post("/v1/completions", {**REQUEST, "temperature": 0}).json
    assert after["choices"] == before["choices"]


def test_paused_engine_keeps_requests_until_it_is_resumed(server: EngineProcess, admin: ApiClient) -> None:
    with server.client() as client:
        stream = client.completions.create(**STORY)
        next(stream)
        assert admin.request("POST", "/pause?mode=keep").json == {"status": "paused"}
        assert admin.request("GET", "/is_paused").json == {"is_paused": True}
        assert admin.request("POST", "/reset_prefix_cache").status == 409
        assert admin.request("POST", "/reset_prefix_cache?reset_running_requests=true").status == 200
        assert admin.request("POST", "/resume").json == {"status": "resumed"}
        assert admin.request("GET", "/is_paused").json == {"is_paused": False}
        assert all(next(stream).choices[0].text for _ in range(3))
        stream.close()


def test_pause_aborts_requests_by_default(server: EngineProcess, admin: ApiClient) -> None:
    with server.client() as client:
        stream = client.completions.create(**STORY)
        next(stream)
        assert admin.request("POST", "/pause").status == 200
        with pytest.raises(openai.APIError):
            list(stream)
        assert admin.request("POST", "/resume").status == 200


def test_profile_is_written(server: EngineProcess, admin: ApiClient, profiles: Path) -> None:
    assert admin.request("POST", "/stop_profile").status == 409
    assert admin.request("POST", "/start_profile").status == 200
    assert admin.request("POST", "/start_profile").status == 409
    assert server.post("/v1/completions", REQUEST).status == 200
    assert admin.request("POST", "/stop_profile").status == 200
    assert list(profiles.glob("*.json.gz"))


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
def test_wrong_admin_parameter_is_named(admin: ApiClient, path: str, said: str) -> None:
    answer = admin.request("POST", path)
    assert answer.status == 400
    assert said in answer.error["message"]
    assert admin.request("GET", "/is_sleeping").json == {"is_sleeping": False}
