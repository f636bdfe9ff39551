"""Ids of requests."""

from engine_server.router.http.request_id import request_id


def test_keeps_the_id_of_the_client():
    assert request_id({b"x-request-id": b"0f8c-11"}) == b"0f8c-11"


def test_replaces_an_invalid_id():
    replaced = request_id({b"x-request-id": b"a b"})
    assert replaced != b"a b" and replaced.isascii() and len(replaced) <= 128


def test_generates_a_different_id_for_each_request():
    assert len({request_id({}) for _ in range(1000)}) == 1000
