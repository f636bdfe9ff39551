"""Ids of requests."""

import pytest

from engine_server.router.http.request_id import request_id


@pytest.mark.parametrize("given", [b"a", b"0f8c-11", b"~" * 128])
def test_keeps_the_id_of_the_client(given):
    assert request_id({b"x-request-id": given}) == given


@pytest.mark.parametrize("given", [b"", b"a b", b"\xe9", b"a\x7f", b"a\x1b[2J", b"~" * 129])
def test_replaces_an_id_that_is_too_long_or_not_printable(given):
    replaced = request_id({b"x-request-id": given})
    assert replaced != given and replaced.isascii() and len(replaced) <= 128


def test_generates_a_different_id_for_each_request():
    assert len({request_id({}) for _ in range(1000)}) == 1000
