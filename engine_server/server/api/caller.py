"""The caller of a request, if the router reports it."""

from __future__ import annotations

from collections.abc import Mapping

from engine_server.contract.caller import ReportedCaller
from engine_server.contract.errors import ErrorCode
from engine_server.contract.headers import CALLER
from engine_server.server.http.errors import ApiError


def reported_caller(headers: Mapping[str, str]) -> ReportedCaller | None:
    """Return the caller of a request with these headers. Raises ApiError 400 for a value that is not the router's.

    Only requests with a key still have the header here.
    """
    value = headers.get(CALLER)
    if value is None:
        return None
    caller = ReportedCaller.parse_header(value)
    if caller is None:
        raise ApiError(
            ErrorCode.INVALID_VALUE, f"{CALLER} takes id=32 HEX DIGITS, scope=32 HEX DIGITS, priority=INTEGER"
        )
    return caller
