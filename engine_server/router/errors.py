"""What a client is told when its request cannot be served, in OpenAI's shape."""

from collections.abc import Sequence

import msgspec

MOST_NAMES = 20  # a 404 names the models it knows, but not a thousand of them


class RequestError(Exception):
    """A request's end without an engine's answer."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Sequence[bytes] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        kind = "invalid_request_error" if self.status < 500 else "service_unavailable_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def malformed(reason: str) -> RequestError:
    return RequestError(400, "malformed_request", reason)


def bad_body(reason: str, param: str | None = None) -> RequestError:
    return RequestError(400, "invalid_body", reason, param)


def head_too_large(limit: int) -> RequestError:
    return RequestError(431, "head_too_large", f"The request's head is larger than {limit} bytes")


def body_too_large(limit: int) -> RequestError:
    return RequestError(413, "body_too_large", f"The request's body is larger than {limit} bytes")


def unknown_path(path: bytes) -> RequestError:
    return RequestError(404, "unknown_path", f"There is no {path.decode('latin-1')} here")


def wrong_method(path: bytes, allowed: bytes) -> RequestError:
    message = f"{path.decode('latin-1')} takes {allowed.decode()}"
    return RequestError(405, "method_not_allowed", message, headers=[b"Allow: %b\r\n" % allowed])


def unknown_model(model: str, known: Sequence[str]) -> RequestError:
    names = ", ".join(known[:MOST_NAMES]) + ("" if len(known) <= MOST_NAMES else ", ...")
    there = f"there is {names}" if known else "there are none yet"
    return RequestError(404, "model_not_found", f"The model {model!r} does not exist; {there}", "model")


def no_replica(model: str) -> RequestError:
    message = f"No replica of {model!r} can take a request right now"
    return RequestError(503, "no_replica", message, headers=[b"Retry-After: 1\r\n"])


def no_answer(model: str, tries: int) -> RequestError:
    return RequestError(502, "no_answer", f"{model!r} closed the connection without an answer {tries} times")


def interrupted(model: str) -> RequestError:
    return RequestError(502, "interrupted", f"The replica of {model!r} went away in the middle of its answer")
