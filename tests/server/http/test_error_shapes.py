"""The shape of an error response, which is that of the API whose path the request has."""

import json
from typing import Any

import pytest
from anthropic.types import ErrorResponse
from starlette.types import Message

from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError


async def answer(error: ApiError, path: str) -> tuple[dict[bytes, bytes], Any]:
    """Return the headers and the body of the response to a request of `path`."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("an error response reads nothing")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "state": {"request_id": "abc"}}
    await error.response()(scope, receive, send)
    start, body = sent
    assert start["status"] == error.status
    headers = dict(start["headers"])
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    return headers, json.loads(body["body"])


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_paths_of_anthropics_api_have_its_errors(path: str, status: int, kind: str) -> None:
    _, body = await answer(ApiError(status, "no"), path)
    assert body == {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "abc"}
    if status != 413:  # the client has no type for it
        ErrorResponse.model_validate(body)


async def test_error_that_may_be_retried_keeps_its_code_and_headers() -> None:
    error = ApiError(503, "full", code=ErrorCode.QUEUE_FULL, retry_after=1, close=True)
    headers, body = await answer(error, "/v1/messages")
    assert body["error"]["code"] == "queue_full"
    assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages_of_others"])
async def test_other_paths_have_openais_errors(path: str) -> None:
    _, body = await answer(ApiError(404, "no", param="model"), path)
    assert body == {"error": {"message": "no", "type": "not_found_error", "param": "model", "code": None}}
