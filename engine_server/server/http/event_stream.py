"""Responses of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from starlette.responses import Response

from engine_server.contract.wire.stream_ends import DONE, openai_end
from engine_server.server.http.chunks import CHUNKS, ChunkWriter
from engine_server.server.http.errors import ApiError, as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

KEEP_ALIVE = b": keep-alive\n\n"
# Ends events and comments for the client; a report to the router, which strips it, is one line.
EVENT_END = b"\n\n"


class StreamFormat(Protocol):
    """The parts of a stream that are the same for all events of an API."""

    @property
    def end(self) -> bytes:
        """The bytes that follow the last event of a stream that does not fail."""

    def error(self, error: ApiError) -> bytes:
        """Return the end of a stream that fails."""


class OpenAIStream:
    """The stream format of OpenAI's completions and chat APIs."""

    end = DONE
    num_events = 0

    def error(self, error: ApiError) -> bytes:
        return openai_end(error.body())


class Line(Protocol):
    """A client's connection, for events that are written while a stream is waited for."""

    @property
    def is_free(self) -> bool:
        """True while the client is there and reads, so that a write needs no wait."""

    def write_now(self, data: bytes) -> None:
        """Write whole events; only while the line is free."""


class ByteStream(StreamFormat, Protocol):
    """A stream's bytes, as they happen."""

    @property
    def ended(self) -> bool:
        """True once the last event was returned."""

    async def next(self, line: Line | None) -> bytes:
        """Wait, and return the bytes of the events that happen together; b"" for none, and after `wake`.

        line: it may write events there meanwhile; None before the answer has begun.
        """

    def wake(self) -> None:
        """End the wait of `next`."""

    async def aclose(self) -> None: ...


class EventStream(Response):
    """A response that sends events while they happen.

    The status is sent with the first event: until then a failure is an ordinary error response, which a router may
    retry on another replica. After it a failure is an event of its own. A stream without a byte for the client for
    `keep_alive` seconds gets a comment, and before its first event the status with it.
    """

    def __init__(
        self,
        stream: ByteStream,
        keep_alive: float,
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._stream = stream
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(self, send, scope["extensions"][CHUNKS]["writer"])
        timer = _IdleTimer(body, self._keep_alive, self._stream.wake)
        try:
            # A task of its own: waking one costs time for each coroutine that awaits, and middleware is many.
            end = await asyncio.create_task(self._send_events(body, timer))
        finally:
            timer.stop()
        await body.end(end)

    async def _send_events(self, body: _Body, timer: _IdleTimer) -> bytes:
        """Send the events, and return the bytes that follow the last one."""
        async with aclosing(self._stream) as stream:
            try:
                while not stream.ended:
                    if data := await stream.next(body.line):
                        await body.write(data)
                    if timer.is_due():
                        await body.write(KEEP_ALIVE)
            except Exception as error:  # any: the client must not take a part of an answer for the whole
                if not body.started:
                    raise
                return stream.error(as_api_error(error))
        return stream.end


class _Body:
    """The bytes of one stream on their way to the client."""

    def __init__(self, response: Response, send: Send, writer: ChunkWriter) -> None:
        self._response = response
        self._send = send
        self._writer = writer
        self._clock = asyncio.get_running_loop().time
        # Time of the last event that was written here, or of the beginning.
        self._written_at = self._clock()
        self.started = False

    @property
    def line(self) -> Line | None:
        """The way past `write`; None before the start."""
        return self._writer if self.started else None

    @property
    def written_at(self) -> float:
        """Time of the last write for the client, or of the beginning."""
        return max(self._written_at, self._writer.written_at)

    async def write(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        await self._writer.write(data)
        if EVENT_END in data:
            self._written_at = self._clock()

    async def end(self, data: bytes) -> None:
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _start(self) -> None:
        response = self._response
        start = {"status": response.status_code, "headers": response.raw_headers}
        await self._send({"type": "http.response.start", **start})
        self.started = True


class _IdleTimer:
    """Calls `wake` whenever nothing was written for the client for `seconds`. A write costs it nothing."""

    def __init__(self, body: _Body, seconds: float, wake: Callable[[], None]) -> None:
        self._body = body
        self._seconds = seconds
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(seconds, self._check)

    def is_due(self) -> bool:
        """Return True if nothing was written for the client for so long."""
        return self._loop.time() - self._body.written_at >= self._seconds

    def stop(self) -> None:
        self._handle.cancel()

    def _check(self) -> None:
        due = self.is_due()
        if due:
            self._wake()
        written_at = self._loop.time() if due else self._body.written_at
        self._handle = self._loop.call_at(written_at + self._seconds, self._check)
