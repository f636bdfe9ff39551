"""Addresses of endpoints."""

import pytest

from engine_server.router.routing.endpoint import Address


@pytest.mark.parametrize(
    "url", ["https://h:1", "h:1", "http://", "http://h:1/v1", "http://h:x", "http://h:1?a=b"]
)
def test_refuses_a_url_that_is_not_http_host_port(url):
    with pytest.raises(ValueError):
        Address.parse(url)


@pytest.mark.parametrize(
    ("url", "parsed", "shown"),
    [
        ("http://h:1/", ("h", 1), "http://h:1"),
        ("http://[::1]:8", ("::1", 8), "http://[::1]:8"),
        ("http://h", ("h", 80), "http://h:80"),
    ],
)
def test_parses_a_url_and_shows_it_in_full(url, parsed, shown):
    assert Address.parse(url) == parsed and str(Address.parse(url)) == shown
