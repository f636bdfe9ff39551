"""The router's address for programs of this machine."""

import pytest
from llm_local.router import Router


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("models.lan", "http://models.lan:80"),
    ],
)
def test_a_router_on_all_addresses_is_asked_on_the_loopback_of_ipv4(host: str, url: str) -> None:
    assert Router(host, 80).url == url
