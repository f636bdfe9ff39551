"""The deadline of a request: the timeout in its header or its body, from the first byte of its head."""

from math import inf

from engine_server.contract.headers import REQUEST_TIMEOUT
from engine_server.router import errors
from engine_server.router.http.wire import Request

FIELD = REQUEST_TIMEOUT.lower().encode()
# An engine that gets a request at its deadline is not told 0, which it would refuse.
SHORTEST_SECONDS = 0.001


def read_deadline(request: Request, body_seconds: float) -> float:
    """Return the time (perf_counter) by which the client wants the whole answer, or inf if it does not say.

    body_seconds: the timeout in the body, or inf. Raises RequestError (400) for a header without a number over 0.
    """
    field = request.fields.get(FIELD)
    seconds = body_seconds if field is None else min(body_seconds, parse_seconds(field))
    return request.arrived + seconds


def parse_seconds(field: bytes) -> float:
    """Return the seconds in a header. Raises RequestError (400)."""
    try:
        seconds = float(field)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < inf:
        raise errors.bad_timeout(field)
    return seconds


def timeout_line(deadline: float, now: float) -> bytes:
    """Return the header line with the seconds that an engine has at the time `now` (perf_counter)."""
    return b"%b: %.3f\r\n" % (REQUEST_TIMEOUT.encode(), max(deadline - now, SHORTEST_SECONDS))
