"""Errors of the router as events of a stream, in the shape of the path's API."""

import json

import pytest

from engine_server.contract.base.quoting import MAX_QUOTE
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


def test_stream_of_openais_apis_ends_with_an_error_of_their_shape_and_its_usual_end():
    end = errors.interrupted("m").stream_end(b"/v1/chat/completions", errors.Sent("m", num_events=7))
    event, done, rest = end.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    names, data = parsed(event + b"\n\n")
    assert names == [] and set(data) == {"error"}
    assert set(data["error"]) == {"message", "type", "param", "code"}
    assert data["error"]["code"] == "interrupted"


def test_stream_of_messages_ends_with_an_error_of_anthropics_shape():
    names, data = parsed(errors.interrupted("m").stream_end(b"/v1/messages", errors.Sent("m", num_events=7)))
    assert names == [b"event: error"] and data["type"] == "error"
    assert (data["error"]["type"], data["error"]["code"]) == ("api_error", "interrupted")
    assert "m" in data["error"]["message"]


def test_stream_of_responses_ends_with_an_error_and_a_failed_response_with_the_next_numbers():
    sent = errors.Sent("m", "mine", num_events=7, id="resp_1", created=5)
    *events, rest = errors.interrupted("m").stream_end(b"/v1/responses", sent).split(b"\n\n")
    (names, error), (failed_names, failed) = (parsed(event + b"\n\n") for event in events)
    assert (names, failed_names, rest) == ([b"event: error"], [b"event: response.failed"], b"")
    assert (error["type"], error["sequence_number"], error["code"]) == ("error", 7, "interrupted")
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 8)
    assert failed["response"] == {
        "id": "resp_1", "object": "response", "created_at": 5, "model": "m", "status": "failed",
        "error": {"message": error["message"], "code": "server_error"}, "incomplete_details": None,
        "output": [], "usage": None,
    }  # fmt: skip


def test_response_without_an_event_is_created_before_it_fails():
    end = errors.interrupted("m").stream_end(b"/v1/responses", errors.Sent("m", "mine"))
    created, error, failed = (parsed(event + b"\n\n")[1] for event in end.split(b"\n\n")[:-1])
    assert [one["type"] for one in (created, error, failed)] == [
        "response.created",
        "error",
        "response.failed",
    ]
    assert [one["sequence_number"] for one in (created, error, failed)] == [0, 1, 2]
    assert created["response"]["id"] == failed["response"]["id"] == "resp_mine"
    assert (created["response"]["status"], created["response"]["error"]) == ("in_progress", None)


@pytest.mark.parametrize(("seconds", "told"), [(60.0, False), (60.5, True)])
def test_clients_that_ignore_a_long_wait_are_told_not_to_come_back(seconds, told):
    assert (
        b"x-should-retry: false\r\n" in errors.rate_limited("'a' may send 1 request", seconds).lines
    ) == told
