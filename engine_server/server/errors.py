"""Errors in OpenAI's shape: what clients of that API know how to read."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine_server.requests.errors import EngineDeadError, InvalidRequestError, QueueFullError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """Ends a request with a status and a message for its client; `param` names the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.close = close

    @property
    def type(self) -> str:
        return {404: "not_found_error", 503: "service_unavailable_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )

    def body(self) -> bytes:
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
        )

    def response(self) -> Response:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.close:
            headers["Connection"] = "close"
        return Response(self.body(), self.status, headers, media_type="application/json")


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error that came up while its request was served."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(400, str(error), param=error.parameter)
        case QueueFullError():
            return ApiError(503, str(error), code="queue_full", retry_after=1)
        case EngineDeadError():
            # 503: nothing was answered yet, so that a router may try another replica.
            return ApiError(
                503, f"the engine is dead: {error}", code="engine_dead", retry_after=1, close=True
            )
        case _:
            logger.error("a request failed", exc_info=error)
            return ApiError(500, "internal error; the server's log has it", code="internal_error")


async def _answer(_: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            message = f"there is no {path}"
        case 405:
            message = (
                f"{path} is not allowed; allowed: {(error.headers or {}).get('Allow', 'another method')}"
            )
        case status:
            message = str(error.detail or HTTPStatus(status).phrase)
    response = ApiError(error.status_code, message).response()
    response.headers.update(error.headers or {})
    return response


def handle_errors(app: FastAPI) -> None:
    for kind in (ApiError, InvalidRequestError, QueueFullError, EngineDeadError, Exception):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
