"""Reading of request bodies, up to a limit, and cancellation of handlers whose client disconnects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class RequestBody:
    """ASGI middleware that gives handlers the whole body at once."""

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
            # The connection stays open: the server skips the rest of the body, so that the client reads the answer.
            await refusal.response()(scope, receive, send)
            return
        if body is None:
            return
        await run_while_connected(self._app, scope, body, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if the client disconnected before its end. Raises ApiError 413."""
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


async def run_while_connected(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Run `app`, and cancel it when the client disconnects."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        for message in messages:
            return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # a disconnect cancels the application instead

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def run() -> None:
        await app(scope, replay, send)

    work = asyncio.create_task(run())
    disconnect = asyncio.create_task(disconnected())
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled():
        work.result()
