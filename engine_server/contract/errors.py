"""Errors: the codes, the types, and the bodies that carry them in the shapes of OpenAI's and Anthropic's APIs."""

from enum import StrEnum

import msgspec


class ErrorCode(StrEnum):
    """Values of an error's `code`, by which clients and dashboards tell errors apart."""

    # From the engine server.
    INVALID_API_KEY = "invalid_api_key"
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
    MODEL_MISMATCH = "model_mismatch"

    FOREIGN_ORIGIN = "foreign_origin"

    # From both.
    MODEL_NOT_FOUND = "model_not_found"
    REQUEST_TIMEOUT = "request_timeout"
    BODY_TOO_LARGE = "body_too_large"
    HEAD_TOO_LARGE = "head_too_large"
    MALFORMED_REQUEST = "malformed_request"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    RATE_LIMITED = "rate_limited"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNKNOWN_HOST = "unknown_host"

    # From the router.
    INVALID_BODY = "invalid_body"
    UNKNOWN_PATH = "unknown_path"
    TARGET_TOO_LONG = "target_too_long"
    SLOW_REQUEST = "slow_request"
    BUFFER_FULL = "buffer_full"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    NO_REPLICA = "no_replica"
    SATURATED = "saturated"
    NO_ANSWER = "no_answer"
    INTERRUPTED = "interrupted"


class ErrorType(StrEnum):
    """Values of an error's `type`, the coarse class that OpenAI's clients know."""

    INVALID_REQUEST = "invalid_request_error"
    NOT_FOUND = "not_found_error"
    RATE_LIMIT = "rate_limit_error"
    SERVICE_UNAVAILABLE = "service_unavailable_error"
    SERVER = "server_error"


def server_error_type(status: int) -> ErrorType:
    """Return the type of an error that the engine server answers with `status`."""
    if status == 404:
        return ErrorType.NOT_FOUND
    if status == 429:
        return ErrorType.RATE_LIMIT
    if status == 503:
        return ErrorType.SERVICE_UNAVAILABLE
    return ErrorType.INVALID_REQUEST if status < 500 else ErrorType.SERVER


def router_error_type(status: int) -> ErrorType:
    """Return the type of an error that the router answers with `status`.

    It differs from the server's for 404, and for 502: to a client of the router an engine that gives no answer is a
    service that is unavailable.
    """
    if status == 429:
        return ErrorType.RATE_LIMIT
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


# Types of errors in Anthropic's API, by status.
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_type(status: int) -> str:
    """Return the type of an error with `status` in Anthropic's API."""
    return ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def has_anthropic_errors(path: str) -> bool:
    """Return true for the paths of Anthropic's API, whose clients expect its errors."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


class AnthropicErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of an error body; `code` is ours, by which a router knows what may be retried."""

    type: str
    message: str
    code: ErrorCode | None = None


class AnthropicErrorBody(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """The JSON body of an error response in Anthropic's API, and the data of an error event in a stream."""

    error: AnthropicErrorDetail
    request_id: str | None = None

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return msgspec.json.encode(self)
