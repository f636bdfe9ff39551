"""The check that a request's body is declared as JSON."""

from __future__ import annotations

from collections.abc import Iterable

from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError


def check_content_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise ApiError 415 for a body of another media type. Without a type a body counts as JSON."""
    given = next((value for name, value in headers if name == b"content-type"), b"")
    media_type = given.decode("latin-1").partition(";")[0].strip().lower()
    if media_type and not is_json(media_type):
        raise ApiError(
            415,
            f"the content type is {media_type[:100]!r}; it takes application/json",
            code=ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        )


def is_json(media_type: str) -> bool:
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
