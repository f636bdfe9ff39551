"""Responses of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from starlette.responses import Response

from engine_server.server.http.errors import ApiError, as_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class StreamFormat(Protocol):
    """The parts of a stream that are the same for all events of an API."""

    # Follows the last event, also after an error.
    end: bytes

    def error(self, error: ApiError) -> bytes:
        """Return the event that reports a failure in mid-stream."""


class OpenAIStream:
    """The stream format of OpenAI's completions and chat APIs."""

    end = b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n"


class EventStream(Response):
    """A response that sends events while they happen.

    The status is sent with the first event: until then a failure is an ordinary error response, which a router may
    retry on another replica. After it a failure is an event of its own.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], stream_format: StreamFormat) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._events = events
        self._format = stream_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except Exception as error:  # any: the client must not take a part of an answer for the whole
                event = self._format.error(as_api_error(error))
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": self._format.end, "more_body": False})
