"""The shape of an error response, which is that of the API whose path the request has."""

import json
from typing import Any

import pytest
from anthropic.types import ErrorResponse
from starlette.types import Message

from engine_server.contract.wire.errors import ErrorCode
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
    ("code", "kind"),
    [
        (ErrorCode.INVALID_VALUE, "invalid_request_error"),
        (ErrorCode.INVALID_API_KEY, "authentication_error"),
        (ErrorCode.FOREIGN_ORIGIN, "permission_error"),
        (ErrorCode.MODEL_NOT_FOUND, "not_found_error"),
        (ErrorCode.METHOD_NOT_ALLOWED, "invalid_request_error"),
        (ErrorCode.BODY_TOO_LARGE, "request_too_large"),
        (ErrorCode.RATE_LIMITED, "rate_limit_error"),
        (ErrorCode.REQUEST_FAILED, "api_error"),
        (ErrorCode.QUEUE_FULL, "overloaded_error"),
        (ErrorCode.REQUEST_TIMEOUT, "timeout_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_paths_of_anthropics_api_have_its_errors(path: str, code: ErrorCode, kind: str) -> None:
    _, body = await answer(ApiError(code, "no"), path)
    error = {"type": kind, "message": "no", "code": code}
    assert body == {"type": "error", "error": error, "request_id": "abc"}
    if code != ErrorCode.BODY_TOO_LARGE:  # the client has no type for it
        ErrorResponse.model_validate(body)


async def test_error_that_may_be_retried_keeps_its_code_and_headers() -> None:
    error = ApiError(ErrorCode.QUEUE_FULL, "full", retry_after=1, close=True)
    headers, body = await answer(error, "/v1/messages")
    assert body["error"]["code"] == "queue_full"
    assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages_of_others"])
async def test_other_paths_have_openais_errors(path: str) -> None:
    _, body = await answer(ApiError(ErrorCode.MODEL_NOT_FOUND, "no", param="model"), path)
    error = {"message": "no", "type": "not_found_error", "param": "model", "code": "model_not_found"}
    assert body == {"error": error}
