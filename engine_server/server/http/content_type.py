"""The check that a request's body is declared as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from engine_server.contract.base.quoting import quote
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError
from engine_server.shared.media_type import is_json, media_type


def check_content_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise ApiError 415 for a body that is not declared as JSON."""
    fields = dict(headers)
    given = fields.get(b"content-type")
    if given is None and fields.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in fields:
        return  # there is no body
    if given is None or not is_json(given):
        found = "missing" if given is None else quote(media_type(given).decode("latin-1"))
        raise ApiError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"the content type is {found}; it takes application/json",
        )
