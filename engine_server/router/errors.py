"""The errors that the router answers itself, in the shape of OpenAI's API."""

from collections.abc import Sequence

from engine_server.contract.errors import ErrorBody, ErrorCode, ErrorDetail, router_error_type

# Models that a 404 lists at most.
MAX_LISTED_MODELS = 20


class RequestError(Exception):
    """An error that ends a request without an answer from an engine."""

    def __init__(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        lines: Sequence[bytes] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        # Further lines of the answer's head.
        self.lines = lines

    def body(self) -> bytes:
        """Return the JSON body, which is also the data of an error event in a stream."""
        detail = ErrorDetail(str(self), router_error_type(self.status), self.param, self.code)
        return ErrorBody(detail).encode()


def malformed(reason: str) -> RequestError:
    """Return the error for bytes that are not a request."""
    return RequestError(400, ErrorCode.MALFORMED_REQUEST, reason)


def bad_body(reason: str, param: str | None = None) -> RequestError:
    """Return the error for a body that cannot be routed; `param` is the field that is wrong."""
    return RequestError(400, ErrorCode.INVALID_BODY, reason, param)


def head_too_large(limit: int) -> RequestError:
    """Return the error for a head of more than `limit` bytes."""
    return RequestError(431, ErrorCode.HEAD_TOO_LARGE, f"The request's head is larger than {limit} bytes")


def body_too_large(limit: int) -> RequestError:
    """Return the error for a body of more than `limit` bytes."""
    return RequestError(413, ErrorCode.BODY_TOO_LARGE, f"The request's body is larger than {limit} bytes")


def unknown_path(path: bytes) -> RequestError:
    """Return the error for a path that the router does not serve."""
    return RequestError(404, ErrorCode.UNKNOWN_PATH, f"Unknown path {path.decode('latin-1')}")


def wrong_method(path: bytes, allowed: bytes) -> RequestError:
    """Return the error for a path that takes only the methods in `allowed`."""
    message = f"{path.decode('latin-1')} allows only {allowed.decode()}"
    return RequestError(405, ErrorCode.METHOD_NOT_ALLOWED, message, lines=[b"Allow: %b\r\n" % allowed])


def unknown_model(model: str, known: Sequence[str]) -> RequestError:
    """Return the error for a model name that means no deployment."""
    names = ", ".join(known[:MAX_LISTED_MODELS]) + ("" if len(known) <= MAX_LISTED_MODELS else ", ...")
    available = f"available: {names}" if known else "none is available yet"
    return RequestError(
        404, ErrorCode.MODEL_NOT_FOUND, f"The model {model!r} does not exist; {available}", "model"
    )


def no_replica(model: str) -> RequestError:
    """Return the error for a deployment without a live endpoint to try."""
    message = f"No replica of {model!r} is ready"
    return RequestError(503, ErrorCode.NO_REPLICA, message, lines=[b"Retry-After: 1\r\n"])


def no_answer(model: str, tries: int) -> RequestError:
    """Return the error for a request that `tries` engines did not answer."""
    return RequestError(
        502, ErrorCode.NO_ANSWER, f"{model!r} closed the connection without an answer {tries} times"
    )


def interrupted(model: str) -> RequestError:
    """Return the error for an answer that broke off; it is the last event of a stream."""
    return RequestError(
        502, ErrorCode.INTERRUPTED, f"The replica of {model!r} failed in the middle of its answer"
    )
