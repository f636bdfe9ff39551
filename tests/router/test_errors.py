"""Errors of the router as events of a stream, in the shape of the path's API."""

import json

import pytest

from engine_server.contract.quoting import MAX_QUOTE
from engine_server.router import errors


def parsed(event: bytes) -> tuple[list[bytes], dict]:
    assert event.endswith(b"\n\n")
    *names, data = event.removesuffix(b"\n\n").split(b"\n")
    return names, json.loads(data.removeprefix(b"data: "))


@pytest.mark.parametrize(
    "error",
    [
        errors.unknown_model("m" * 100_000, []),
        errors.model_not_allowed("m" * 100_000, []),
        errors.no_replica("m" * 100_000),
        errors.unknown_path(b"/" + b"p" * 60_000),
        errors.wrong_method(b"/" + b"p" * 60_000, b"GET"),
    ],
)
def test_error_quotes_only_the_beginning_of_a_long_name_or_path(error):
    assert len(str(error)) < MAX_QUOTE + 100


def test_error_in_a_stream_of_openais_apis_has_their_shape():
    names, data = parsed(errors.interrupted("m").event(b"/v1/chat/completions", 7))
    assert names == [] and set(data) == {"error"}
    assert set(data["error"]) == {"message", "type", "param", "code"}
    assert data["error"]["code"] == "interrupted"


def test_error_in_a_stream_of_messages_has_anthropics_shape():
    names, data = parsed(errors.interrupted("m").event(b"/v1/messages", 7))
    assert names == [b"event: error"] and data["type"] == "error"
    assert (data["error"]["type"], data["error"]["code"]) == ("api_error", "interrupted")
    assert "m" in data["error"]["message"]


def test_error_in_a_stream_of_responses_has_the_next_sequence_number():
    names, data = parsed(errors.interrupted("m").event(b"/v1/responses", 7))
    assert names == [b"event: error"]
    assert (data["type"], data["sequence_number"], data["code"]) == ("error", 7, "interrupted")


@pytest.mark.parametrize(("seconds", "told"), [(60.0, False), (60.5, True)])
def test_clients_that_ignore_a_long_wait_are_told_not_to_come_back(seconds, told):
    assert (
        b"x-should-retry: false\r\n" in errors.rate_limited("'a' may send 1 request", seconds).lines
    ) == told
