"""HTTP/1.1 connections: uvicorn's protocol with limits on the time and memory that one client can take."""

from __future__ import annotations

import asyncio
import fcntl
import termios
from array import array
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.answer_transport import AnswerTransport
from engine_server.server.http.chunks import CHUNKS, ChunkWriter
from engine_server.server.http.disconnect import DISCONNECT, WhileConnected
from engine_server.server.http.errors import ApiError
from engine_server.server.http.memory_share import MemoryShare
from engine_server.shared.addresses import site
from engine_server.shared.pipelining import MAX_WAITING, Unparsed
from engine_server.shared.places import Occupant, Places, Stage
from engine_server.shared.shares import Shares

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn._types import ASGI3Application
    from uvicorn.server import ServerState

# The time to read bytes that lie in the socket when a client's time is over.
UNREAD_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of a connection. Times are in seconds."""

    # Bytes of a request line with its header fields and trailers.
    head_bytes: int = 64 << 10
    head_fields: int = 128
    # From the first byte of a head to its end.
    head_seconds: float = 10.0
    # Between two pieces of a body.
    piece_seconds: float = 30.0
    # From the end of a head to that of its body.
    body_seconds: float = 300.0
    # In which a client reads less than LEAST_RATE while a part of an answer is pending.
    read_seconds: float = 60.0
    # For the client to read an answer after which the connection closes.
    linger_seconds: float = 10.0


class Input(Enum):
    """The part of a request that a connection waits for."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"
    # The connection closes after an answer; further input has no meaning.
    DISCARDED = "discarded"


# Of a connection that waits for its client.
STAGES = {Input.NOTHING: Stage.IDLE, Input.HEAD: Stage.HEAD, Input.BODY: Stage.BODY}


class InputFlow(FlowControl):
    """uvicorn's flow control, which reads nothing while a part of the input is not parsed."""

    def __init__(self, transport: asyncio.Transport, unparsed: Unparsed) -> None:
        super().__init__(transport)
        self._unparsed = unparsed

    def resume_reading(self) -> None:
        if not self._unparsed:
            super().resume_reading()


class Connection(HttpToolsProtocol, Occupant):
    """One client's connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits | None = None,
        input_shares: Shares,
        places: Places,
    ) -> None:
        """input_shares: memory for the input of all connections that is not parsed yet."""
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits or ConnectionLimits()
        self._answers: AnswerTransport
        self._input = Input.NOTHING
        self._unparsed = Unparsed()
        self._input_shares = input_shares
        self._places = places
        # Bytes of a body of declared length that are missing.
        self._missing = 0
        # Of the request that is being read.
        self._head_bytes = 0
        self._num_fields = 0
        # Bytes in which the parser found nothing to report, such as a part of a header field, which it keeps.
        self._unreported = 0
        # The end of the time for the body, on the loop's clock.
        self._body_ends = 0.0
        # Ends the wait for a head or for the next piece of a body.
        self._timer: asyncio.TimerHandle | None = None
        # The request that is being answered, or was answered last; later ones are queued.
        self._running: RequestResponseCycle | None = None
        self._while_connected = WhileConnected()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = InputFlow(transport, self._unparsed)
        host, _ = self.client or ("", 0)  # a Unix socket has none
        self.sender = site(host)
        self._share = MemoryShare(self._input_shares, self.sender)
        self._answers = AnswerTransport(transport, self._limits.read_seconds, self._close)
        self._start_keepalive()

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        if running is not None and not running.response_complete:
            self._disconnect(running)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._answers.stop()
        self._drop_input()
        self._places.free(self)

    def give_way(self) -> None:
        """Close the connection, which waits for a request or for the rest of one."""
        # Without waiting for what the client of a TLS connection does.
        self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note_if_waiting()

    def data_received(self, data: bytes) -> None:
        if self._input is Input.DISCARDED:
            return
        self._unset_keepalive_if_required()
        self._places.note_busy(self)
        self._unparsed.add(data)
        self._parse()

    def _parse(self) -> None:
        """Parse what arrived, for as long as few requests wait for the answers to earlier ones."""
        try:
            while self._unparsed and len(self.pipeline) < MAX_WAITING:
                piece = self._unparsed.take(self._missing)
                self._unreported += len(piece)
                self._feed(piece)
                if self._unreported > self._limits.head_bytes:
                    raise self._head_too_large()
            if not self._share.resize(len(self._unparsed)):
                raise self._no_memory()
        except ApiError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            invalid = ApiError(ErrorCode.MALFORMED_REQUEST, f"invalid HTTP request: {error}")
            self._refuse(cause if isinstance(cause, ApiError) else invalid)
        else:
            if self._unparsed:
                self.flow.pause_reading()
            self._watch_input()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._input = Input.HEAD
        self._head_bytes = self._num_fields = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_fields += 1
        self._count_head(len(name) + len(value))
        if self._input is Input.HEAD:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # fed again without the upgrade
            return
        self._stop_timer()
        self._input = Input.BODY
        self._body_ends = self.loop.time() + self._limits.body_seconds
        self._missing = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unreported = 0
        self._missing -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._stop_timer()
        self._input = Input.NOTHING
        self._unreported = 0
        super().on_message_complete()
        if self.cycle is self._running:
            # A large body has paused it, and the end of the connection is read too.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        if self._input is not Input.DISCARDED:
            super().on_response_complete()
            self._note_if_waiting()
            if self._unparsed and not self.transport.is_closing():
                self._parse()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._while_connected = WhileConnected()
        cycle.transport = self._answers
        cycle.scope["extensions"] = {
            CHUNKS: {"writer": ChunkWriter(cycle)},
            DISCONNECT: {"while_connected": self._while_connected},
        }
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse `data`. An offered upgrade, as Java's client offers HTTP/2, is declined by removing the offer."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    raise ApiError(ErrorCode.METHOD_NOT_ALLOWED, "CONNECT is not allowed") from None
                data = b"".join((self._head_without_upgrade(), data[upgrade.args[0] :]))
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's parsers
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _count_head(self, size: int) -> None:
        self._unreported = 0
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes or self._num_fields > self._limits.head_fields:
            raise self._head_too_large()

    def _head_too_large(self) -> ApiError:
        limits = self._limits
        message = (
            f"the request's head is too large; it may have {limits.head_bytes} bytes and "
            f"{limits.head_fields} header fields"
        )
        return ApiError(ErrorCode.HEAD_TOO_LARGE, message)

    def _no_memory(self) -> ApiError:
        message = "the requests that clients sent before their answers take all memory that there is for them"
        return ApiError(ErrorCode.BUFFER_FULL, message, retry_after=1)

    def _watch_input(self) -> None:
        """Start the timer of the part of a request that is missing."""
        if self._input is Input.HEAD:
            if self._timer is None:
                self._start_timer(self._limits.head_seconds, self._time_out_head)
        elif self._input is Input.BODY:
            self._wait_for_piece()
        elif self._running is None or self._running.response_complete:
            self._start_keepalive()
        self._note_if_waiting()

    def _wait_for_piece(self) -> None:
        left = self._body_ends - self.loop.time()
        self._start_timer(min(self._limits.piece_seconds, left), self._time_out_body)

    def _start_keepalive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _note_if_waiting(self) -> None:
        """Offer the connection's place to others while it waits for a request or for the rest of one."""
        stage, running = STAGES.get(self._input), self._running
        if stage is Stage.BODY and running is self.cycle:
            in_flight = running.response_started
        else:
            in_flight = running is not None and not running.response_complete
        if stage is not None and not (in_flight or self.flow.write_paused or self.transport.is_closing()):
            self._places.note_waiting(self, stage)

    def _start_timer(self, seconds: float, expire: Any) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out_head(self) -> None:
        if self.flow.read_paused:  # it is not the client that waits
            self._start_timer(self._limits.head_seconds, self._time_out_head)
            return
        if self._has_unread_input:
            self._start_timer(UNREAD_SECONDS, self._time_out_head)
            return
        message = f"the request's head did not arrive within {self._limits.head_seconds:g} s"
        self._refuse(ApiError(ErrorCode.SLOW_REQUEST, message))

    def _time_out_body(self) -> None:
        limits = self._limits
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # it is not the client that waits
            self._body_ends += limits.piece_seconds
            self._wait_for_piece()
            return
        if self._has_unread_input:
            self._start_timer(UNREAD_SECONDS, self._time_out_body)
            return
        if self.loop.time() < self._body_ends:
            message = f"no part of the request's body arrived for {limits.piece_seconds:g} s"
        else:
            message = f"the request's body did not arrive within {limits.body_seconds:g} s"
        self._refuse(ApiError(ErrorCode.SLOW_REQUEST, message))

    def timeout_keep_alive_handler(self) -> None:
        if self._has_unread_input:
            self._start_keepalive()
        else:
            super().timeout_keep_alive_handler()

    @property
    def _has_unread_input(self) -> bool:
        """Bytes lie in the socket: the loop may have stood still since they arrived."""
        unread = array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread)
        return unread[0] > 0

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that can't be read, and close the connection."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        running, in_body = self._running, self._input is Input.BODY
        self._input = Input.DISCARDED
        self._drop_input()
        if running is None or running.response_complete:
            if not in_body:
                self._answer(error)
        elif not in_body or running is not self.cycle:
            # An earlier request is being answered; the connection closes after it.
            self.pipeline.clear()
            running.keep_alive = False
            return
        else:
            self._disconnect(running)
            if running.response_started:
                self.transport.abort()
                return
            self._answer(error)
        self._linger()

    def _disconnect(self, running: RequestResponseCycle) -> None:
        """End the request that is being answered: nobody waits for its answer."""
        running.disconnected = True
        running.message_event.set()
        self._while_connected.disconnect()

    def _drop_input(self) -> None:
        self._unparsed.clear()
        self._share.resize(0)

    def _answer(self, error: ApiError) -> None:
        body = error.body()
        lines = [STATUS_LINE[error.status]]
        lines += [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
        lines += [b"content-type: application/json\r\nconnection: close\r\n"]
        lines += [b"content-length: %d\r\n\r\n" % len(body), body]
        self._answers.write(b"".join(lines))

    def _close(self) -> None:
        """Close the connection after its last answer."""
        if self._input in (Input.BODY, Input.DISCARDED):
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Discard input until the client closes: what arrives at a closed socket would destroy the unread answer."""
        self._input = Input.DISCARDED
        self._drop_input()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._start_timer(self._limits.linger_seconds, self.transport.abort)
