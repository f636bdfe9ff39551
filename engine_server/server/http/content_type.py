"""The check that a request's body is declared as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class JsonBodies:
    """ASGI middleware that answers 415 to a body of another media type. Without a type a body counts as JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        media_type = given.decode("latin-1").partition(";")[0].strip().lower()
        if scope["method"] != "POST" or not media_type or is_json(media_type):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            415,
            f"the content type is {media_type[:100]!r}; it takes application/json",
            code=ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        )
        await error.response()(scope, receive, send)


def is_json(media_type: str) -> bool:
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
