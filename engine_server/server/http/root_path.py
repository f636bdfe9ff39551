"""The path prefix under which a proxy publishes the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """The outermost ASGI middleware: it removes the prefix from a path, if the proxy has not removed it already.

    Everything behind it sees one spelling of each path.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/") + "/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(self._prefix):
            scope = {**scope, "path": scope["path"][len(self._prefix) - 1 :]}
        await self._app(scope, receive, send)
