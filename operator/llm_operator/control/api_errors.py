"""Failures of calls to the API server, read from the fields of its `Status` answers and not from their prose."""

import msgspec
from aiohttp import ClientError
from kubernetes.aio.client import ApiException

# Everything that a call may raise: an error answer, or no answer.
FAILURES = (ApiException, ClientError, OSError, TimeoutError)

OUTAGE_SECONDS = 1.0
# The longest time that an answer may ask to wait for.
LONGEST_OUTAGE_SECONDS = 60.0


class Cause(msgspec.Struct, frozen=True):
    """One violation: the path of the field, and the problem with it."""

    message: str = ""
    field: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class Details(msgspec.Struct, frozen=True):
    causes: tuple[Cause, ...] = ()


class ErrorStatus(msgspec.Struct, frozen=True):
    """The part of a `Status` answer that the operator reads."""

    message: str
    details: Details | None = None


def describe(error: Exception) -> str:
    """Return the violations that the API server lists, else its message, else the kind of failure."""
    if not isinstance(error, ApiException):
        return f"{type(error).__name__} {error}".strip()
    try:
        status = msgspec.json.decode(error.body or b"", type=ErrorStatus)
    except msgspec.DecodeError:
        return str(error.reason)
    causes = status.details.causes if status.details else ()
    return "; ".join(map(str, dict.fromkeys(causes))) or status.message


def is_rejection(error: ApiException) -> bool:
    """Return True if the API server has read the request and refuses its content."""
    return error.status in (400, 403, 422)


def is_missing(error: Exception) -> bool:
    """Return True if what was asked for does not exist, or may not be read."""
    return isinstance(error, ApiException) and error.status in (403, 404)


def is_transient(error: Exception) -> bool:
    """Return True for a conflict or a failure of the server: it ends without a change of what was asked for."""
    return (
        isinstance(error, ApiException)
        and error.status is not None
        and (error.status == 409 or error.status >= 500)
    )


def outage_seconds(error: Exception) -> float | None:
    """Return the seconds after which to call again if the API server does not answer or has no time; else None."""
    if not isinstance(error, FAILURES):
        return None
    if not isinstance(error, ApiException):
        return OUTAGE_SECONDS
    if error.status not in (429, 503, 504):
        return None
    try:
        asked = float((error.headers or {}).get("Retry-After", 0))
    except ValueError:  # it may be a date
        return OUTAGE_SECONDS
    return min(LONGEST_OUTAGE_SECONDS, max(OUTAGE_SECONDS, asked))
