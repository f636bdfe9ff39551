"""The headers that every answer of a loaded engine has: its load and its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from engine_server.contract import headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from engine_server.server.engine_host import EngineHost


class AnswerHeaders:
    """ASGI middleware that adds the headers Fairlead-Load and Fairlead-Model."""

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._host.loading:
            await self._app(scope, receive, send)
            return

        async def add_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added[headers.LOAD] = self._host.engine_load.header()
                added.setdefault(headers.MODEL, self._host.fingerprint)
            await send(message)

        await self._app(scope, receive, add_and_send)
