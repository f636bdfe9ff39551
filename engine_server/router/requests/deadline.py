"""The deadline of a request: the timeout in its header or its body, from the first byte of its head."""

from engine_server.contract.wire.deadline import TimeLeft
from engine_server.router import errors
from engine_server.router.http.wire import Request

FIELD = TimeLeft.NAME.lower().encode()


def read_deadline(request: Request, body_seconds: float) -> float:
    """Return the time (perf_counter) by which the client wants the whole answer, or inf if it does not say.

    body_seconds: the timeout in the body, or inf. Raises RequestError (400) for a header without a number over 0.
    """
    field = request.fields.get(FIELD)
    if field is None:
        return request.arrived + body_seconds
    try:
        left = TimeLeft.parse(field.decode("latin-1"))
    except ValueError as error:
        raise errors.bad_timeout(str(error)) from None
    return request.arrived + min(body_seconds, left.seconds)
