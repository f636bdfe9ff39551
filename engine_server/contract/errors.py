"""Errors in the shape of OpenAI's API: the codes, the types, and the body that carries them."""

from enum import StrEnum

import msgspec


class ErrorCode(StrEnum):
    """Values of an error's `code`, by which clients and dashboards tell errors apart."""

    # From the engine server.
    INVALID_API_KEY = "invalid_api_key"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    QUEUE_FULL = "queue_full"
    LOADING = "loading"
    DRAINING = "draining"
    ENGINE_DEAD = "engine_dead"
    REQUEST_FAILED = "request_failed"
    ABORTED = "aborted"
    INTERNAL_ERROR = "internal_error"
    INVALID_JSON = "invalid_json"
    MISSING_FIELD = "missing_field"
    UNSUPPORTED_VALUE = "unsupported_value"
    INVALID_VALUE = "invalid_value"

    REQUEST_TIMEOUT = "request_timeout"

    MODEL_MISMATCH = "model_mismatch"

    # From both.
    MODEL_NOT_FOUND = "model_not_found"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    MALFORMED_REQUEST = "malformed_request"
    METHOD_NOT_ALLOWED = "method_not_allowed"

    # From the router.
    INVALID_BODY = "invalid_body"
    UNKNOWN_PATH = "unknown_path"
    NO_REPLICA = "no_replica"
    NO_ANSWER = "no_answer"
    INTERRUPTED = "interrupted"


class ErrorType(StrEnum):
    """Values of an error's `type`, the coarse class that OpenAI's clients know."""

    INVALID_REQUEST = "invalid_request_error"
    NOT_FOUND = "not_found_error"
    SERVICE_UNAVAILABLE = "service_unavailable_error"
    SERVER = "server_error"


def server_error_type(status: int) -> ErrorType:
    """Return the type of an error that the engine server answers with `status`."""
    if status == 404:
        return ErrorType.NOT_FOUND
    if status == 503:
        return ErrorType.SERVICE_UNAVAILABLE
    return ErrorType.INVALID_REQUEST if status < 500 else ErrorType.SERVER


def router_error_type(status: int) -> ErrorType:
    """Return the type of an error that the router answers with `status`.

    It differs from the server's for 404, and for 502: to a client of the router an engine that gives no answer is a
    service that is unavailable.
    """
    return ErrorType.INVALID_REQUEST if status < 500 else ErrorType.SERVICE_UNAVAILABLE


class ErrorDetail(msgspec.Struct, frozen=True):
    """The content of an error body; `param` names the request field that is wrong."""

    message: str
    type: ErrorType
    param: str | None = None
    code: ErrorCode | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The JSON body of an error response, and the data of an error event in a stream."""

    error: ErrorDetail

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return msgspec.json.encode(self)
