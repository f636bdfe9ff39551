"""The errors that the router answers itself, in the shape of OpenAI's or Anthropic's API."""

from collections.abc import Sequence
from math import ceil
from time import time
from typing import Literal
from uuid import uuid4

import msgspec

from engine_server.contract.base.quoting import quote, shorten
from engine_server.contract.wire.errors import (
    AnthropicErrorBody,
    AnthropicErrorDetail,
    ErrorBody,
    ErrorCode,
    ErrorDetail,
    anthropic_error_type,
    has_anthropic_errors,
    router_error_type,
)
from engine_server.contract.wire.stream_ends import (
    RESPONSE_ID,
    FailedResponse,
    FailureBody,
    anthropic_end,
    openai_end,
    responses_end,
)
from engine_server.router.obstacle import UNKNOWN, Obstacle

RESPONSES_PATH = b"/v1/responses"
# Models that a 404 lists at most.
MAX_LISTED_MODELS = 20
# OpenAI's and Anthropic's clients ignore a longer `Retry-After` and come back at once, unless told not to.
LONGEST_OBEYED_SECONDS = 60.0
NO_RETRY = b"x-should-retry: false\r\n"


class Sent(msgspec.Struct, frozen=True):
    """What is known of a stream up to its break."""

    # The model and the id that the request names; an answer's id is made of it.
    model: str = ""
    request_id: str = ""
    num_events: int = 0
    # The answer's own, if its engine has told them.
    id: str = ""
    created: int = 0


class RequestError(Exception):
    """An error that ends a request without an answer from an engine."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        lines: Sequence[bytes] = (),
        detail: str = "",
        status: int | None = None,
    ) -> None:
        """status: that of an engine's answer, if it is not the code's."""
        super().__init__(message)
        self.status = status or code.status
        self.code = code
        self.param = param
        # Further lines of the answer's head.
        self.lines = lines
        # More about the cause, for the log alone.
        self.detail = detail

    def stream_end(self, path: bytes, sent: Sent) -> bytes:
        """Return the events that end a stream of the API of `path` after what was sent."""
        if has_anthropic_errors(path.decode("latin-1")):
            return anthropic_end(self.body(path))
        if path != RESPONSES_PATH:
            return openai_end(self.body())
        own_id = sent.id or RESPONSE_ID + (sent.request_id or uuid4().hex)
        created = sent.created or int(time())

        def response(failure: FailureBody | None) -> bytes:
            status: Literal["in_progress", "failed"] = "in_progress" if failure is None else "failed"
            body = FailedResponse(
                id=own_id, created_at=created, model=sent.model, status=status, error=failure
            )
            return msgspec.json.encode(body)

        return responses_end(sent.num_events, self.code, str(self), self.param, response)

    def body(self, path: bytes = b"", request_id: bytes = b"") -> bytes:
        """Return the JSON body in the shape of the API that `path` belongs to, which is also the data of an event.

        request_id: Anthropic's bodies repeat it, and their events have none.
        """
        if has_anthropic_errors(path.decode("latin-1")):
            detail = AnthropicErrorDetail(anthropic_error_type(self.status), str(self), self.code)
            return AnthropicErrorBody(detail, request_id.decode("latin-1") or None).encode()
        return ErrorBody(
            ErrorDetail(str(self), router_error_type(self.status), self.param, self.code)
        ).encode()


def id_lines(path: bytes, request_id: bytes) -> bytes:
    """Return the header line by which clients of Anthropic's API learn the id of a request; b"" for other APIs."""
    if request_id and has_anthropic_errors(path.decode("latin-1")):
        return b"Request-Id: %b\r\n" % request_id
    return b""


def malformed(reason: str) -> RequestError:
    """Return the error for bytes that are not a request."""
    return RequestError(ErrorCode.MALFORMED_REQUEST, reason)


def bad_body(reason: str, param: str | None = None) -> RequestError:
    """Return the error for a body that cannot be routed; `param` is the field that is wrong."""
    return RequestError(ErrorCode.INVALID_BODY, reason, param)


def not_json(content_type: bytes | None) -> RequestError:
    """Return the error for a body that is not declared as JSON."""
    found = "missing" if content_type is None else quote(content_type.decode("latin-1"))
    message = f"The content type is {found}; it takes application/json"
    return RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, message)


def bad_timeout(message: str) -> RequestError:
    """Return the error for a header with a timeout that is no number of seconds."""
    return RequestError(ErrorCode.INVALID_VALUE, message)


def timed_out(model: str) -> RequestError:
    """Return the error for a request whose own timeout passed while no replica had it."""
    message = f"The request's timeout passed before a replica of {quote(model)} answered it"
    return RequestError(ErrorCode.REQUEST_TIMEOUT, message, lines=[NO_RETRY])


def unknown_host(host: bytes) -> RequestError:
    """Return the error for a name by which the router, on a loopback address, may not be called."""
    message = (
        f"{quote(host.decode('latin-1'))} is no name of this router, which listens on a loopback address"
    )
    return RequestError(ErrorCode.UNKNOWN_HOST, f"{message}; --allow-host NAME allows one")


def head_too_large(limit: int) -> RequestError:
    """Return the error for a head of more than `limit` bytes."""
    return RequestError(ErrorCode.HEAD_TOO_LARGE, f"The request's head is larger than {limit} bytes")


def too_many_fields(limit: int) -> RequestError:
    """Return the error for a head of more than `limit` header fields."""
    return RequestError(ErrorCode.HEAD_TOO_LARGE, f"The request has more than {limit} header fields")


def too_much_framing(limit: int) -> RequestError:
    """Return the error for a chunked body with more than `limit` bytes of trailers or chunk extensions."""
    message = f"The trailers and chunk extensions of the body are larger than {limit} bytes"
    return RequestError(ErrorCode.HEAD_TOO_LARGE, message)


def target_too_long(limit: int) -> RequestError:
    """Return the error for a path and query of more than `limit` bytes."""
    return RequestError(
        ErrorCode.TARGET_TOO_LONG, f"The path and query of the request are longer than {limit} bytes"
    )


def body_too_large(limit: int) -> RequestError:
    """Return the error for a body of more than `limit` bytes."""
    message = f"The request's body is larger than {limit} bytes" if limit else "This port takes no bodies"
    return RequestError(ErrorCode.BODY_TOO_LARGE, message)


def slow_request(part: str, seconds: float) -> RequestError:
    """Return the error for a request of which `part` did not arrive within `seconds`."""
    return RequestError(ErrorCode.SLOW_REQUEST, f"{part} did not arrive within {seconds:g} s")


def buffer_full() -> RequestError:
    """Return the error for a body that found no room in time."""
    message = "The bodies of other requests take all memory that there is for them; try again later"
    return RequestError(ErrorCode.BUFFER_FULL, message, lines=[b"Retry-After: 1\r\n"])


def no_room_for_answer(model: str) -> RequestError:
    """Return the error for a stream whose unfinished events found no room; it is the last event of the stream."""
    message = (
        f"The answers of {quote(model)} take all memory that there is for unfinished events; try again later"
    )
    return RequestError(ErrorCode.BUFFER_FULL, message)


def unknown_path(path: bytes) -> RequestError:
    """Return the error for a path that the router does not serve."""
    return RequestError(ErrorCode.UNKNOWN_PATH, f"Unknown path {shorten(path.decode('latin-1'))}")


def wrong_method(path: bytes, allowed: bytes) -> RequestError:
    """Return the error for a path that takes only the methods in `allowed`."""
    message = f"{shorten(path.decode('latin-1'))} allows only {allowed.decode()}"
    return RequestError(ErrorCode.METHOD_NOT_ALLOWED, message, lines=[b"Allow: %b\r\n" % allowed])


def unknown_model(model: str, known: Sequence[str]) -> RequestError:
    """Return the error for a model name that means no deployment."""
    return RequestError(
        ErrorCode.MODEL_NOT_FOUND,
        f"The model {quote(model)} does not exist; {available(known)}",
        "model",
    )


def not_served(model: str, known: Sequence[str], detail: str) -> RequestError:
    """Return the error for a model that its replicas don't know, with others; `detail` is what a replica said."""
    others = [name for name in known if name != model]
    message = f"No replica serves the model {quote(model)} now; {available(others)}"
    return RequestError(ErrorCode.MODEL_NOT_FOUND, message, "model", detail=detail)


def available(models: Sequence[str]) -> str:
    """Return the models as a part of a message."""
    names = ", ".join(models[:MAX_LISTED_MODELS]) + ("" if len(models) <= MAX_LISTED_MODELS else ", ...")
    return f"available: {names}" if models else "none is available yet"


def invalid_api_key() -> RequestError:
    """Return the error for a request without a key that the router knows."""
    message = "The request has no valid API key; it takes `Authorization: Bearer KEY` or `x-api-key: KEY`"
    return RequestError(ErrorCode.INVALID_API_KEY, message, lines=[b"WWW-Authenticate: Bearer\r\n"])


def invalid_internal_key() -> RequestError:
    """Return the error for a request for an internal page without the key of routers and the operator."""
    message = "This page takes the key that routers and the operator derive from the router's root key"
    return RequestError(ErrorCode.INVALID_API_KEY, message, lines=[b"WWW-Authenticate: Bearer\r\n"])


def model_not_allowed(model: str, known: Sequence[str]) -> RequestError:
    """Return the error for a model that the request's key may not use, with those that it may."""
    message = f"The API key may not use the model {quote(model)}; {available(known)}"
    return RequestError(ErrorCode.MODEL_NOT_ALLOWED, message, "model")


def rate_limited(limit: str, seconds: float) -> RequestError:
    """Return the error for a request beyond a limit of its key, which has room again after `seconds`."""
    message = f"The API key {limit}; try again in {max(1, ceil(seconds))} s"
    lines = [retry_after(seconds)]
    if seconds > LONGEST_OBEYED_SECONDS:
        lines.append(NO_RETRY)
    return RequestError(ErrorCode.RATE_LIMITED, message, lines=lines)


def no_replica(
    model: str, obstacle: Obstacle = UNKNOWN, seconds: float = 1.0, detail: str = ""
) -> RequestError:
    """Return the error for a deployment without a live endpoint to try; one is expected after `seconds`."""
    message = f"No replica of {quote(model)} is ready" + (f": {obstacle.reason}" if obstacle.reason else "")
    detail = str(obstacle) if obstacle.message else detail
    return RequestError(ErrorCode.NO_REPLICA, message, lines=[retry_after(seconds)], detail=detail)


def start_failed(model: str, obstacle: Obstacle, seconds: float) -> RequestError:
    """Return the error for a deployment whose start has failed, and is not tried again for `seconds`."""
    error = no_replica(model, obstacle, seconds)
    error.lines = [*error.lines, NO_RETRY]
    return error


def adapter_failed(model: str, detail: str) -> RequestError:
    """Return the error for an adapter that no replica can serve, for a reason that retries do not remove."""
    message = f"No replica can serve the adapter {quote(model)}"
    return RequestError(ErrorCode.NO_REPLICA, message, lines=[NO_RETRY], detail=detail)


def retry_after(seconds: float) -> bytes:
    """Return the header line that asks a client to wait for so long."""
    return b"Retry-After: %d\r\n" % max(1, ceil(seconds))


def saturated(model: str, seconds: float) -> RequestError:
    """Return the error for a deployment whose live replicas are all full, the soonest for `seconds` more."""
    message = f"All replicas of {quote(model)} are full"
    return RequestError(ErrorCode.SATURATED, message, lines=[retry_after(seconds)])


def no_answer(model: str, tries: int) -> RequestError:
    """Return the error for a request that `tries` engines did not answer. It may have made them fail."""
    message = f"{tries} replicas of {quote(model)} failed before they answered the request"
    # OpenAI's and Anthropic's clients obey it.
    return RequestError(ErrorCode.NO_ANSWER, message, lines=[NO_RETRY])


def compressed(model: str) -> RequestError:
    """Return the error for a stream whose head names no encoding, and whose engines all compress; it is its end."""
    message = f"The replicas of {quote(model)} compress their events, although they were asked not to"
    return RequestError(ErrorCode.NO_ANSWER, message)


def interrupted(model: str) -> RequestError:
    """Return the error for an answer that broke off; it is the last event of a stream."""
    return RequestError(
        ErrorCode.INTERRUPTED, f"The replica of {quote(model)} failed in the middle of its answer"
    )


def replica_failed(
    model: str, status: int, code: ErrorCode | None, seconds: float, detail: str
) -> RequestError:
    """Return the error for a request that replicas answered with errors, the last one with `status` and `detail`."""
    message = f"The replica of {quote(model)} answered with status {status}"
    lines = [retry_after(seconds)] if status == 503 else []
    return RequestError(code or ErrorCode.NO_ANSWER, message, lines=lines, detail=detail, status=status)


def refused(model: str, status: int, code: ErrorCode | None, message: str) -> RequestError:
    """Return the error for a request that each engine would refuse with `message`, after a stream's head was sent."""
    message = message or f"The replica of {quote(model)} answered with status {status}"
    return RequestError(code or ErrorCode.NO_ANSWER, message, status=status)
