"""Error responses, in the shape of the API that the request's path belongs to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine_server.contract.base.quoting import shorten
from engine_server.contract.wire.engine_report import Fingerprint
from engine_server.contract.wire.errors import (
    AnthropicErrorBody,
    AnthropicErrorDetail,
    ErrorBody,
    ErrorCode,
    ErrorDetail,
    anthropic_error_type,
    has_anthropic_errors,
    server_error_type,
)
from engine_server.requests.errors import (
    EngineDeadError,
    EngineShutDownError,
    InvalidRequestError,
    OperationRefusedError,
    QueueFullError,
    ShareUsedError,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

# In characters: a message's own words, and a quotation of the client's input.
MAX_MESSAGE = 1000


class ApiError(Exception):
    """An error that ends a request with the status of its code, and a message.

    param: the field that is wrong. fingerprint: that of the model or adapter that would have answered; None: it has no
    part in the error.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = code.status
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.close = close
        self.fingerprint = fingerprint

    def body(self) -> bytes:
        """Return the JSON body of OpenAI's API, which is also the data of an error event in a stream."""
        message, param = shorten(self.message, MAX_MESSAGE), self.param and shorten(self.param)
        detail = ErrorDetail(message, server_error_type(self.status), param, self.code)
        return ErrorBody(detail).encode()

    def anthropic_body(self, request_id: str | None) -> bytes:
        """Return the JSON body of Anthropic's API, which is also the data of an error event in a stream."""
        message = shorten(self.message, MAX_MESSAGE)
        detail = AnthropicErrorDetail(anthropic_error_type(self.status), message, self.code)
        return AnthropicErrorBody(detail, request_id).encode()

    def response(self) -> Response:
        """Return the whole HTTP response."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.close:
            headers["Connection"] = "close"
        if self.fingerprint is not None:
            headers[Fingerprint.NAME] = self.fingerprint
        return ErrorResponse(self, headers)


def refusal(error: InvalidRequestError, fields: Mapping[str, str]) -> ApiError:
    """Return the engine's error as one of the client's field."""
    param = fields.get(error.parameter or "", error.parameter)
    message = str(error) if param == error.parameter else f"{param}: {error}"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=param)


class ErrorResponse(Response):
    """The response for an error, in the shape of the API that the request's path belongs to."""

    def __init__(self, error: ApiError, headers: dict[str, str]) -> None:
        super().__init__(error.body(), error.status, headers, media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if has_anthropic_errors(scope["path"]):
            self.body = self._error.anthropic_body(scope.get("state", {}).get("request_id"))
            self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def as_api_error(error: Exception) -> ApiError:
    """Return the error to report to the client whose request raised `error`; log it if it is unexpected."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(ErrorCode.INVALID_VALUE, str(error), param=error.parameter)
        case QueueFullError():
            return ApiError(ErrorCode.QUEUE_FULL, str(error), retry_after=1)
        case ShareUsedError():
            # Not queue_full, for which a router takes all other callers' requests elsewhere too.
            return ApiError(ErrorCode.RATE_LIMITED, str(error), retry_after=1)
        case EngineShutDownError():
            return shutting_down()
        case OperationRefusedError():
            return ApiError(ErrorCode.OPERATION_REFUSED, str(error))
        case EngineDeadError():
            return dead()
        case _:
            logger.error("a request failed", exc_info=error)
            return ApiError(ErrorCode.INTERNAL_ERROR, "internal error; the server's log has it")


def shutting_down() -> ApiError:
    """Return the error of a request that the server's shutdown refuses or ends; another replica can take it."""
    message = "the server is shutting down"
    return ApiError(ErrorCode.DRAINING, message, retry_after=1, close=True)


def dead() -> ApiError:
    """Return the error of a request whose engine has ended. The cause may quote other requests: only the log has it.

    A router may retry on another replica, since nothing was sent.
    """
    message = "the engine is dead; the server's log has the cause"
    return ApiError(ErrorCode.ENGINE_DEAD, message, retry_after=1, close=True)


async def answer_error(_: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = f"{request.method} {shorten(request.url.path)}"
    match error.status_code:
        case 404:
            answer = ApiError(ErrorCode.UNKNOWN_PATH, f"there is no {path}")
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            answer = ApiError(ErrorCode.METHOD_NOT_ALLOWED, f"{path} is not allowed; allowed: {allowed}")
        case _:
            answer = as_api_error(error)
    response = answer.response()
    response.headers.update(error.headers or {})
    return response


async def answer_invalid_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    message = f"{name}: {first['msg']}"
    return ApiError(ErrorCode.INVALID_VALUE, message, param=name).response()


def add_error_handlers(app: FastAPI) -> None:
    """Register the handlers that turn exceptions into error responses."""
    for kind in (
        ApiError,
        InvalidRequestError,
        QueueFullError,
        ShareUsedError,
        OperationRefusedError,
        EngineDeadError,
        Exception,
    ):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid_parameter)
    app.add_exception_handler(HTTPException, answer_http_exception)
