"""The time in which a request has to be answered."""

from collections.abc import Mapping

from engine_server.contract.errors import ErrorCode
from engine_server.contract.headers import REQUEST_TIMEOUT
from engine_server.server.http.errors import ApiError


def deadline(timeout: float | None, headers: Mapping[str, str]) -> float | None:
    """Return the shorter of the request's own timeout and its header's, in seconds. Raises ApiError."""
    text = headers.get(REQUEST_TIMEOUT)
    if text is None:
        return timeout
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"{REQUEST_TIMEOUT} is {text[:50]!r}; it takes a number of seconds over 0",
        )
    return seconds if timeout is None else min(timeout, seconds)
