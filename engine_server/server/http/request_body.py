"""Reading of request bodies: JSON up to a limit. Handlers get them whole, and are cancelled on a disconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from engine_server.contract.wire.body_structure import UNCOUNTED_BYTES, excess_of_structure
from engine_server.contract.wire.continuation import ROUTER_FIELD_BYTES
from engine_server.contract.wire.errors import ErrorCode
from engine_server.contract.wire.router_head import continues_stream, reported_caller
from engine_server.engine.loop.turns import sender
from engine_server.server.http import built_answer
from engine_server.server.http.built_answer import answer_memory
from engine_server.server.http.content_type import check_content_type
from engine_server.server.http.disconnect import DISCONNECT
from engine_server.server.http.errors import ApiError
from engine_server.server.http.memory_share import MemoryShare
from engine_server.shared.abridged_body import abridge
from engine_server.shared.addresses import site
from engine_server.shared.body_buffer import Body, BodyBuffer
from engine_server.shared.shares import Shares

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Of all bodies together.
MAX_BYTES = 256 << 20


class RequestBody:
    """ASGI middleware that gives handlers the whole body at once, and cancels them when the client disconnects."""

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        shares: Shares | None = None,
        answers: Shares | None = None,
        *,
        any_content_type: bool = False,
    ) -> None:
        """shares: memory for bodies. answers: memory for answers that are built whole.

        any_content_type: also take bodies that are not declared as JSON.
        """
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._shares = shares or Shares(MAX_BYTES)
        self._answers = answers or Shares(built_answer.MAX_BYTES)
        self._any_content_type = any_content_type
        # Of a large body that is whole: it is parsed before the next one.
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        host, _ = scope.get("client") or ("", 0)  # a Unix socket has none
        client = site(host)
        with MemoryShare(self._shares, client) as share:
            try:
                if scope["method"] == "POST" and not self._any_content_type:
                    check_content_type(scope["headers"])
                body = await self._read(scope, receive, share)
            except ApiError as refusal:
                await refusal.response()(scope, receive, send)
                return
            if body is not None:
                await self._answer(scope, body, send, reported_id(scope) or client)

    async def _answer(self, scope: Scope, body: Body, send: Send, owner: str) -> None:
        """Let the application answer. owner: who sent the request, for whom its work and its answer count."""
        sender_token = sender.set(owner)
        with MemoryShare(self._answers, owner) as memory:
            memory_token = answer_memory.set(memory)
            try:
                with scope["extensions"][DISCONNECT]["while_connected"]:
                    await self._app(scope, replay(body), send)
            finally:
                answer_memory.reset(memory_token)
                sender.reset(sender_token)

    async def _read(self, scope: Scope, receive: Receive, share: MemoryShare) -> Body | None:
        """Return the body; None if the client disconnected before its end.

        Raises ApiError for a body that is too large, or whose JSON would take too long to parse.
        """
        most = self._max_body_bytes
        if continues_stream(Headers(scope=scope)):
            most += ROUTER_FIELD_BYTES
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > most:
                raise self._too_large()
        body = BodyBuffer(most)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            if len(body) + len(piece) > most:
                raise self._too_large()
            if not share.resize(len(body) + len(piece)):
                raise self._no_memory()
            body.add(piece)
            if not message.get("more_body", False):
                whole = body.whole()
                if len(whole) > UNCOUNTED_BYTES:
                    async with self._turn:
                        await asyncio.sleep(0)  # all else goes on between two large bodies
                    check_structure(whole, scope)
                return whole

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {self._max_body_bytes} bytes, which is the limit"
        return ApiError(ErrorCode.BODY_TOO_LARGE, message, close=True)

    def _no_memory(self) -> ApiError:
        message = (
            f"there is no room for the body in the {self._shares.limit} bytes for those of all requests in flight, "
            "of which each sender has a share; try again later"
        )
        return ApiError(ErrorCode.BUFFER_FULL, message, retry_after=1, close=True)


def reported_id(scope: Scope) -> str | None:
    """Return the id of the caller that a router reports, if it does."""
    try:
        caller = reported_caller(Headers(scope=scope))
    except ValueError:
        return None
    return None if caller is None else caller.id


def check_structure(body: Body, scope: Scope) -> None:
    """Raise ApiError 400 for JSON with too many values, since a parser creates an object for each and blocks others."""
    error = excess_of_structure(abridge(body), scope["path"], continues_stream(Headers(scope=scope)))
    if error is not None:
        raise ApiError(ErrorCode.INVALID_VALUE, error)


async def read_body(request: Request) -> Body:
    """Return the body of a handler's request, which Starlette would copy."""
    body: Body = (await request.receive())["body"]
    return body


def replay(body: Body) -> Receive:
    """Return the channel of a request whose body has been read."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in messages:
            return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # a disconnect cancels the application instead

    return receive
