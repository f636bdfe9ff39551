"""A request's two ends: its whole body, up to a limit, and then an eye on its client.

Handlers know of neither: they get the body at once, and are cancelled where the client goes away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Intake:
    """ASGI middleware for requests with a body."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._body(scope, receive)
        except ApiError as refusal:
            # The connection stays: the server reads past the rest, so that the client gets to read this.
            await refusal.response()(scope, receive, send)
            return
        if body is None:
            return
        await _while_connected(self._app, scope, body, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, or None where the client left before its end."""
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._max_body_bytes:
                raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_body_bytes} bytes, which is the limit",
            code=ErrorCode.BODY_TOO_LARGE,
        )


async def _while_connected(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run `app`, and cancel it when the client disconnects."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        for message in messages:
            return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # a disconnect is told by cancelling

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def run() -> None:
        await app(scope, replay, send)

    work = asyncio.create_task(run())
    left = asyncio.create_task(disconnected())
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled():
        work.result()
