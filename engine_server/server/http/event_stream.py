"""Responses of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from starlette.responses import Response

from engine_server.server.http.chunks import CHUNKS, WriteChunk
from engine_server.server.http.errors import ApiError, as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

KEEP_ALIVE = b": keep-alive\n\n"


class StreamFormat(Protocol):
    """The parts of a stream that are the same for all events of an API."""

    # Follows the last event, also after an error.
    end: bytes

    def error(self, error: ApiError) -> bytes:
        """Return the event that reports a failure in mid-stream."""


class OpenAIStream:
    """The stream format of OpenAI's completions and chat APIs."""

    end = b"data: [DONE]\n\n"
    num_events = 0

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"


class Events(Protocol):
    """An asynchronous iterator of encoded events, as those that happen together."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class EventStream(Response):
    """A response that sends events while they happen.

    The status is sent with the first event: until then a failure is an ordinary error response, which a router may
    retry on another replica. After it a failure is an event of its own. A stream without a byte for `keep_alive`
    seconds gets a comment, and before its first event the status with it.
    """

    def __init__(self, events: Events, stream_format: StreamFormat, keep_alive: float) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._events = events
        self._format = stream_format
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(self, send, scope["extensions"][CHUNKS]["write"])
        comments = asyncio.create_task(body.keep_alive(self._keep_alive))
        try:
            # A task of its own: waking one costs time for each coroutine that awaits, and middleware is many.
            await asyncio.create_task(self._send_events(body))
        finally:
            comments.cancel()
        await body.end(self._format.end)

    async def _send_events(self, body: _Body) -> None:
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await body.write(event)
            except Exception as error:  # any: the client must not take a part of an answer for the whole
                if not body.started:
                    raise
                await body.write(self._format.error(as_api_error(error)))


class _Body:
    """The bytes of one stream on their way to the client."""

    def __init__(self, response: Response, send: Send, write: WriteChunk) -> None:
        self._response = response
        self._send = send
        self._write = write
        # Held while the status is sent, which waits while the client reads an earlier answer.
        self._starting = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._last_write = self._clock()
        self.started = False

    async def write(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        await self._write(data)
        self._last_write = self._clock()

    async def end(self, data: bytes) -> None:
        await self._start()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def keep_alive(self, interval: float) -> None:
        """Write a comment whenever nothing was written for `interval` seconds; never returns."""
        while True:
            idle = self._clock() - self._last_write
            if idle < interval:
                await asyncio.sleep(interval - idle)
            else:
                await self.write(KEEP_ALIVE)

    async def _start(self) -> None:
        async with self._starting:
            if not self.started:
                response = self._response
                start = {"status": response.status_code, "headers": response.raw_headers}
                await self._send({"type": "http.response.start", **start})
                self.started = True
