"""Requests of web pages: the origins that may call the server, and the names by which they may do so."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from local_server import serving

REQUEST = {"model": "smollm2", "prompt": "Hello", "max_tokens": 1}
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
# A request as a router forwards it.
ROUTED = {
    "Host": "localhost:8080",
    "Content-Type": "application/json",
    "Fairlead-Report-Tokens": "1",
    "X-Request-Id": "1",
}


@pytest.fixture(scope="module")
def local() -> Iterator[Any]:
    """A server on loopback addresses without keys, as `fairlead up` starts it."""
    flags = ("--host=127.0.0.1", "--allow-host=models.lan", "--enable-admin", "--admin-port=0")
    with serving(*flags) as server:
        yield server


@pytest.mark.parametrize("host", ["localhost", "ui.localhost:8000", "127.0.0.1:80", "[::1]:80", "Models.LAN"])
def test_loopback_server_answers_by_its_own_names(local: Any, host: str) -> None:
    assert local.request("GET", "/v1/models", None, {"Host": host}).status == 200


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:8000", "localhost.example", "1.2.3.4.nip.io"]
)
def test_loopback_server_refuses_a_name_of_another_site(local: Any, host: str) -> None:
    for port in (local, local.admin):
        answer = port.request("GET", "/is_paused", None, {"Host": host})
        assert (answer.status, answer.error["code"]) == (403, "unknown_host")


def test_server_that_other_machines_reach_takes_any_name() -> None:
    with serving("--host=0.0.0.0") as server:
        assert server.request("GET", "/v1/models", None, {"Host": "models.example.com"}).status == 200


def test_openai_client_and_the_router_are_answered(local: Any) -> None:
    with openai.OpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0) as client:
        assert client.completions.create(model="smollm2", prompt="Hello", max_tokens=1).choices
    assert local.request("POST", "/v1/completions", REQUEST, ROUTED).status == 200


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:3000", "https://ui.localhost"])
def test_pages_of_this_machine_may_call_by_default(local: Any, origin: str) -> None:
    headers = {"Origin": origin}
    assert local.request("OPTIONS", "/v1/completions", None, PREFLIGHT | headers).status == 200
    answer = local.request("POST", "/v1/completions", REQUEST, headers)
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", ["https://page.example", "http://localhost.example", "null"])
def test_other_pages_may_not(local: Any, origin: str) -> None:
    headers = {"Origin": origin}
    assert local.request("OPTIONS", "/v1/completions", None, PREFLIGHT | headers).status == 400
    answer = local.request("GET", "/v1/models", None, headers)
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_on_the_servers_own_host_may_call(local: Any) -> None:
    headers = {"Origin": "http://models.lan:3000", "Host": "models.lan:8000"}
    assert local.request("OPTIONS", "/v1/completions", None, PREFLIGHT | headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_admin_port_takes_no_requests_of_pages(local: Any, headers: dict[str, str]) -> None:
    answer = local.admin.request("POST", "/reset_prefix_cache", None, headers)
    assert (answer.status, answer.error["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}])
def test_admin_port_takes_requests_of_programs_and_of_people(local: Any, headers: dict[str, str]) -> None:
    assert local.admin.request("GET", "/is_sleeping", None, headers).status != 403
