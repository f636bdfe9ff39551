"""Ids of requests: the client's, if it can be logged as it is, else one of the router's own."""

import itertools
import os

from engine_server.router.http.wire import Request
from engine_server.shared.request_ids import FIELD, is_valid

_prefix = os.urandom(8).hex().encode()
_numbers = itertools.count(1)


def id_line(request: Request) -> bytes:
    """Return the header line that gives the client the id of its request."""
    return b"X-Request-Id: %b\r\n" % request.id


def request_id(fields: dict[bytes, bytes]) -> bytes:
    """Return the id of a request with these fields (names in lower case)."""
    given = fields.get(FIELD)
    if given is not None and is_valid(given):
        return given
    return b"%b-%x" % (_prefix, next(_numbers))
