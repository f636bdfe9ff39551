"""An exchange: one request of a client, its answer, and what the answer waits for."""

import logging
from asyncio import Future, Transport
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Protocol

import msgspec

from engine_server.router.errors import RequestError, Sent, id_lines
from engine_server.router.http.wire import (
    LAST_CHUNK,
    REASONS,
    Request,
    chunk,
    own_response_head,
    response_head,
)

log = logging.getLogger(__name__)

JSON = b"application/json"
# By field, in lower case: the lines with which no proxy on the way keeps events back.
UNBUFFERED = {
    b"cache-control:": b"Cache-Control: no-cache\r\n",
    b"x-accel-buffering:": b"X-Accel-Buffering: no\r\n",
}
STREAM_LINES = b"Content-Type: text/event-stream; charset=utf-8\r\n" + b"".join(UNBUFFERED.values())
COMMENT = b": keep-alive\n\n"


class Client(Protocol):
    """The connection to a client, as far as an exchange needs it."""

    # The connection closes after this answer.
    closing: bool
    # The client is slow to read.
    blocked: bool
    # The owner of what is shared among senders: the name of the sender's key, else its address.
    owner: str

    def write(self, data: bytes) -> None:
        """Send bytes of an answer."""
        ...

    def finish(self) -> None:
        """Go on with the next request: the exchange has ended."""
        ...

    def close(self) -> None:
        """Close the connection after what was written."""
        ...

    def abort(self) -> None:
        """Reset the connection."""
        ...

    def pack_body(self, data: bytes | None) -> None:
        """Replace the body of the request that is being answered by its compressed form, or forget it."""
        ...

    def claim_unpacked(self) -> bool:
        """Take room for the body that is packed, which is not forgotten then. Return False if there is none."""
        ...


class Wait(msgspec.Struct, eq=False):
    """Something that one exchange waits for.

    Awaiting it suspends the exchange, and `wake` resumes it. A wait that wakes late, because the exchange meanwhile
    waits for something else or has ended, resumes nothing.
    """

    exchange: "Exchange"

    def __await__(self) -> Generator["Wait", None, None]:
        yield self

    def wake(self) -> None:
        """Resume the exchange if this is what it waits for."""
        self.exchange.resume(self)


Answer = Coroutine[Wait, None, None]


class Exchange(msgspec.Struct, eq=False):
    """One request of a client and the coroutine that answers it.

    The coroutine awaits nothing but waits of this exchange. It runs in the callbacks that wake them, so that a request
    never waits for a turn of the event loop, as an asyncio task would. If the client leaves, it is closed.
    """

    client: Client
    request: Request
    # Further header lines of whatever answers the request.
    lines: bytes = b""
    # The transport of the engine whose answer is forwarded; it is paused while the client is slow to read.
    source: Transport | None = None
    # The client has the head of a stream of events: an error is the end of the stream.
    streaming: bool = False
    # What is known of the answer.
    sent: Sent = Sent()
    # None while the coroutine runs, and after its end.
    waiting_for: Wait | None = None
    steps: Generator[Any, Any, None] | None = None

    def begin(self, answer: Answer) -> None:
        """Run the coroutine up to its first wait."""
        self.steps = answer.__await__()
        self.resume(None)  # it waits for nothing yet

    def resume(self, wait: Wait | None) -> None:
        """Run the coroutine up to its next wait, if `wait` is what it waits for."""
        if wait is not self.waiting_for or self.steps is None:
            return
        self.waiting_for = None
        try:
            self.waiting_for = next(self.steps, None)
            if self.waiting_for is not None:
                return
        except RequestError as failure:
            if self.streaming:
                self.end_stream(failure)
            else:
                path, request_id = self.request.path, self.request.id
                lines = (*failure.lines, id_lines(path, request_id))
                self.respond(failure.status, failure.body(path, request_id), lines=lines)
        except Exception:  # a fault in the router ends one connection, not the process
            log.exception("failed to answer a request")
            self.cut()
        self.steps = None
        self.client.finish()

    def follow(self, source: Transport) -> None:
        """Pause the engine's transport whenever the client is slow to read, and now if it is."""
        self.source = source
        if self.client.blocked:
            source.pause_reading()

    def stop(self) -> None:
        """End the exchange where it is: the client has left."""
        steps, self.steps, self.waiting_for = self.steps, None, None
        if steps is not None:
            steps.close()

    def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, lines: Sequence[bytes] = ()
    ) -> None:
        """Send an answer of the router's own. `lines` are further lines of its head."""
        lines = (*lines, self.lines)
        head = own_response_head(status, len(body), content_type, lines, close=self.client.closing)
        self.client.write(head if self.request.method == b"HEAD" else head + body)

    def respond_empty(self, lines: Sequence[bytes]) -> None:
        """Send an answer without a body, status 204, with these lines in its head."""
        head = b"".join((*lines, self.lines))
        self.client.write(response_head(204, REASONS[204], head, close=self.client.closing))

    def send_comment(self) -> None:
        """Send a comment of a stream of events, after the head if the client does not have it yet."""
        chunked = self.request.http11
        if not self.streaming:
            self.streaming = True
            lines = STREAM_LINES + id_lines(self.request.path, self.request.id) + self.lines
            lines += b"Transfer-Encoding: chunked\r\n" if chunked else b""
            self.client.write(response_head(200, b"OK", lines, close=self.client.closing))
        self.client.write(chunk(COMMENT) if chunked else COMMENT)

    def end_stream(self, failure: RequestError) -> None:
        """Send an error as the end of a stream."""
        end = failure.stream_end(self.request.path, self.sent)
        self.client.write(chunk(end) + LAST_CHUNK if self.request.http11 else end)

    def cut(self) -> None:
        """Close the client's connection so that it sees that the answer is not complete."""
        self.client.closing = True
        if self.request.http11:
            self.client.close()
        else:
            self.client.abort()  # for HTTP/1.0 an orderly close is the end of a complete answer


async def wait_for(future: Future[Any], exchange: Exchange) -> None:
    """Wait until an asyncio future is done. It goes on if the exchange ends first."""
    wait = Wait(exchange)
    future.add_done_callback(lambda _: wait.wake())
    await wait
