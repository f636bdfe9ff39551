"""What a client is told when its request cannot be served, in OpenAI's shape."""

from collections.abc import Sequence

import msgspec

MOST_NAMES = 20  # a 404 names the models it knows, but not a thousand of them


class RequestError(Exception):
    """A request's end without an engine's answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Sequence[bytes] = (),
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
    return RequestError(400, reason, code="malformed_request")


def bad_body(reason: str, param: str | None = None) -> RequestError:
    return RequestError(400, reason, code="invalid_body", param=param)


def head_too_large(limit: int) -> RequestError:
    return RequestError(431, f"The request's head is larger than {limit} bytes", code="head_too_large")


def body_too_large(limit: int) -> RequestError:
    return RequestError(
        413, f"The request's body is larger than the limit of {limit} bytes", code="body_too_large"
    )


def unknown_path(method: bytes, path: bytes) -> RequestError:
    where = f"{method.decode('latin-1')} {path.decode('latin-1')}"
    return RequestError(404, f"There is no {where} here", code="unknown_path")


def wrong_method(path: bytes, allowed: bytes) -> RequestError:
    message = f"{path.decode('latin-1')} takes {allowed.decode()}"
    return RequestError(405, message, code="method_not_allowed", headers=[b"Allow: %b\r\n" % allowed])


def unknown_model(model: str, known: list[str]) -> RequestError:
    names = ", ".join(known[:MOST_NAMES]) + (
        f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    )
    message = f"The model {model!r} does not exist; there {'is ' + names if known else 'are none yet'}"
    return RequestError(404, message, code="model_not_found", param="model")


def no_replica(model: str) -> RequestError:
    message = f"No replica of {model!r} can take a request right now"
    return RequestError(503, message, code="no_replica", headers=[b"Retry-After: 1\r\n"])


def dropped(model: str) -> RequestError:
    message = f"The replicas of {model!r} that were tried closed the connection without an answer"
    return RequestError(502, message, code="no_answer")


def internal() -> RequestError:
    return RequestError(500, "The router failed on this request; its log says why", code="internal_error")


def interrupted(model: str) -> RequestError:
    return RequestError(
        502, f"The replica of {model!r} went away before the answer was complete", code="interrupted"
    )
