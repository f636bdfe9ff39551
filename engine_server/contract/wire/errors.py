"""Errors: the codes, the types, and the bodies that carry them in the shapes of OpenAI's and Anthropic's APIs."""

from enum import Enum, StrEnum
from typing import Self

import msgspec


class Elsewhere(Enum):
    """May another engine answer the request that one refused?"""

    # Each engine would refuse it.
    NEVER = "never"
    # Yes; but retries are limited, since the cause may be the request, or a load that all engines share.
    WITHIN_BUDGET = "within the budget"
    # Yes: the engine takes no further requests, and those that it had must not be lost.
    ALWAYS = "always"


NEVER, WITHIN_BUDGET, ALWAYS = Elsewhere


class ErrorCode(StrEnum):
    """Values of an error's `code`, by which clients and dashboards tell errors apart: each has one status."""

    status: int
    elsewhere: Elsewhere

    def __new__(cls, code: str, status: int, elsewhere: Elsewhere) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        member.elsewhere = elsewhere
        return member

    # From the engine server.
    QUEUE_FULL = "queue_full", 503, WITHIN_BUDGET
    LOADING = "loading", 503, ALWAYS
    DRAINING = "draining", 503, ALWAYS
    ENGINE_DEAD = "engine_dead", 503, ALWAYS
    ABORTED = "aborted", 503, WITHIN_BUDGET
    REQUEST_FAILED = "request_failed", 500, NEVER
    INTERNAL_ERROR = "internal_error", 500, WITHIN_BUDGET
    INVALID_JSON = "invalid_json", 400, NEVER
    MISSING_FIELD = "missing_field", 400, NEVER
    UNSUPPORTED_VALUE = "unsupported_value", 400, NEVER
    MODEL_MISMATCH = "model_mismatch", 409, NEVER
    OPERATION_REFUSED = "operation_refused", 409, NEVER
    FOREIGN_ORIGIN = "foreign_origin", 403, NEVER

    # From both.
    INVALID_VALUE = "invalid_value", 400, NEVER
    MALFORMED_REQUEST = "malformed_request", 400, NEVER
    INVALID_API_KEY = "invalid_api_key", 401, NEVER
    UNKNOWN_HOST = "unknown_host", 403, NEVER
    MODEL_NOT_FOUND = "model_not_found", 404, NEVER
    UNKNOWN_PATH = "unknown_path", 404, NEVER
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, NEVER
    SLOW_REQUEST = "slow_request", 408, NEVER
    BODY_TOO_LARGE = "body_too_large", 413, NEVER
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, NEVER
    RATE_LIMITED = "rate_limited", 429, NEVER
    HEAD_TOO_LARGE = "head_too_large", 431, NEVER
    BUFFER_FULL = "buffer_full", 503, WITHIN_BUDGET
    REQUEST_TIMEOUT = "request_timeout", 504, NEVER

    # From the router.
    INVALID_BODY = "invalid_body", 400, NEVER
    MODEL_NOT_ALLOWED = "model_not_allowed", 403, NEVER
    TARGET_TOO_LONG = "target_too_long", 414, NEVER
    NO_ANSWER = "no_answer", 502, WITHIN_BUDGET
    INTERRUPTED = "interrupted", 502, WITHIN_BUDGET
    NO_REPLICA = "no_replica", 503, WITHIN_BUDGET
    SATURATED = "saturated", 503, WITHIN_BUDGET

    @classmethod
    def parse(cls, code: str | int | None) -> Self | None:
        """Return the code, or None for one that is not ours, such as those of engines of other makes."""
        found = cls._value2member_map_.get(code)
        return found if isinstance(found, cls) else None

    @property
    def breaks_off(self) -> bool:
        """True for the end of a stream that is the engine's own, and not its request's: another may continue it."""
        return self.status == 503 and self.elsewhere is not NEVER


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
    param: str | None
    code: ErrorCode


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
    code: ErrorCode


class AnthropicErrorBody(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """The JSON body of an error response in Anthropic's API, and the data of an error event in a stream."""

    error: AnthropicErrorDetail
    request_id: str | None = None

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return msgspec.json.encode(self)
