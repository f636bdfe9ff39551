"""The errors that the router itself answers, in the shape of OpenAI's API."""

from collections.abc import Sequence

from engine_server.contract.errors import ErrorBody, ErrorCode, ErrorDetail, router_error_type

# The most models that a 404 lists.
MOST_NAMES = 20


class RequestError(Exception):
    """An error that ends a request without an answer from an engine."""

    def __init__(
        self,
        status: int,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        headers: Sequence[bytes] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """Return the JSON body, which is also the data of an error event in a stream."""
        detail = ErrorDetail(str(self), router_error_type(self.status), self.param, self.code)
        return ErrorBody(detail).encode()


def malformed(reason: str) -> RequestError:
    return RequestError(400, ErrorCode.MALFORMED_REQUEST, reason)


def bad_body(reason: str, param: str | None = None) -> RequestError:
    return RequestError(400, ErrorCode.INVALID_BODY, reason, param)


def head_too_large(limit: int) -> RequestError:
    return RequestError(431, ErrorCode.HEAD_TOO_LARGE, f"The request's head is larger than {limit} bytes")


def body_too_large(limit: int) -> RequestError:
    return RequestError(413, ErrorCode.BODY_TOO_LARGE, f"The request's body is larger than {limit} bytes")


def unknown_path(path: bytes) -> RequestError:
    return RequestError(404, ErrorCode.UNKNOWN_PATH, f"There is no {path.decode('latin-1')} here")


def wrong_method(path: bytes, allowed: bytes) -> RequestError:
    message = f"{path.decode('latin-1')} takes {allowed.decode()}"
    return RequestError(405, ErrorCode.METHOD_NOT_ALLOWED, message, headers=[b"Allow: %b\r\n" % allowed])


def unknown_model(model: str, known: Sequence[str]) -> RequestError:
    names = ", ".join(known[:MOST_NAMES]) + ("" if len(known) <= MOST_NAMES else ", ...")
    there = f"there is {names}" if known else "there are none yet"
    return RequestError(
        404, ErrorCode.MODEL_NOT_FOUND, f"The model {model!r} does not exist; {there}", "model"
    )


def no_replica(model: str) -> RequestError:
    message = f"No replica of {model!r} can take a request right now"
    return RequestError(503, ErrorCode.NO_REPLICA, message, headers=[b"Retry-After: 1\r\n"])


def no_answer(model: str, tries: int) -> RequestError:
    return RequestError(
        502, ErrorCode.NO_ANSWER, f"{model!r} closed the connection without an answer {tries} times"
    )


def interrupted(model: str) -> RequestError:
    return RequestError(
        502, ErrorCode.INTERRUPTED, f"The replica of {model!r} went away in the middle of its answer"
    )
