"""The connection to a client: requests arrive on it, and are answered in their order."""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol, cast

from engine_server.router.errors import RequestError, buffer_full
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.client_address import FORWARDED_FOR
from engine_server.router.http.exchange import Answer, Exchange
from engine_server.router.http.forwarded_fields import ForwardedFields
from engine_server.router.http.limits import Limits
from engine_server.router.http.reading_turn import ReadingTurn
from engine_server.router.http.receiving import Refusal, RequestReader
from engine_server.router.http.request_id import id_line
from engine_server.router.http.transport import configure_transport, peer_address, unacknowledged_bytes
from engine_server.router.http.unread_answers import UnreadAnswers
from engine_server.shared.addresses import site
from engine_server.shared.pipelining import SLICE_BYTES
from engine_server.shared.places import Occupant, Places
from engine_server.shared.slow_readers import LEAST_RATE, limit_unsent_bytes

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class State(Enum):
    """What becomes of the bytes that a client sends."""

    # They are read.
    READING = "reading"
    # None are read: the client sends faster than it is answered, or others have a turn.
    PAUSED = "paused"
    # None are read: the bodies that arrived last wait for room in the budget.
    WITHOUT_ROOM = "without room"
    # They are discarded: the last answer was a refusal, which the client is to read before the connection closes.
    LINGERING = "lingering"
    # The connection is lost.
    CLOSED = "closed"


# The path of each request uses them: in Python 3.11 the lookup of a member costs as much as several calls.
READING, PAUSED, WITHOUT_ROOM, LINGERING, CLOSED = State


class Application(Protocol):
    """Answers the requests of a port."""

    def answer(self, exchange: Exchange) -> Answer:
        """Return the coroutine that answers a request."""
        ...

    def check_sender(self, fields: Mapping[bytes, bytes]) -> None:
        """Raise RequestError if the sender of these header fields may not send a large body."""
        ...

    def owner(self, fields: Mapping[bytes, bytes], peer: str) -> str:
        """Return the owner of what the sender of these header fields takes, on a connection from the address `peer`."""
        ...

    def address(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the address of a client on a connection from `peer` that may be a proxy's."""
        ...

    def refuse(self, exchange: Exchange, error: RequestError) -> Answer:
        """Return the coroutine that answers a request that was not received whole with an error."""
        ...


class ClientConnection(Occupant):
    """Answers one request at a time; each answer has an exchange of its own. `sweep` ends what takes too long."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        budget: BodyBudget,
        unread: UnreadAnswers,
        reading: ReadingTurn,
        forwarded: ForwardedFields,
        places: Places,
        on_made: Callable[["ClientConnection"], None],
    ) -> None:
        """Call `on_made` once the connection can be used."""
        self._application = application
        self._limits = limits
        self._budget = budget
        self._unread = unread
        self._reading = reading
        self._places = places
        self._on_made = on_made
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(limits, self._expect_body, application.check_sender, forwarded)
        self._received = self._reader.received
        self._exchange: Exchange | None = None
        # Bytes of bodies that were taken from the budget, for the sender of the first of them.
        self._claimed = 0
        self.owner = ""
        # As the last request had it; the client's address depends on it.
        self._forwarded_for: bytes | None = None
        self._state = READING
        # Time (of the event loop) since which nothing is read, or at which the lingering began.
        self._since = 0.0
        # The client is slow to read: bytes wait that the kernel does not take.
        self.blocked = False
        # Bytes that were written, and those of them that the client had acknowledged at the last sweep.
        self._written = 0
        self._taken = 0
        # The time since which the client is behind, or of which the last minute began in which it took enough; None if
        # it is not behind. What it had acknowledged then.
        self._behind_since: float | None = None
        self._taken_before = 0
        # The owner of its unread bytes; None: none are counted.
        self._unread_owner: str | None = None
        # Time at which the client last sent a part of a request or got an answer.
        self._last_active = self._loop.time()
        # Done once the connection is closed.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.closing = False

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        configure_transport(self._transport)
        limit_unsent_bytes(self._transport)
        self._peer = peer_address(self._transport)
        self.sender = site(self._peer)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        assert self._state is READING or self._state is LINGERING
        reader = self._reader
        if reader.refused:
            return
        if len(data) > SLICE_BYTES:
            reader.feed_slices(data)
        elif reader.receiving:
            reader.feed_more(data)
        else:
            reader.feed(data)
        if reader.receiving:
            self._last_active = now = self._loop.time()
            reader.note_piece(now)
        if reader.held != self._claimed:
            self._claim()
        self._advance()
        if (
            len(data) > SLICE_BYTES
            and self._reading.add(len(data))
            and reader.receiving
            and self._state is READING
        ):
            self._pause(PAUSED)
            self._loop.call_soon(self._advance)

    def connection_lost(self, exc: Exception | None) -> None:
        state, self._state = self._state, CLOSED
        self._budget.unkeep(self)  # what follows may make others ask for its room
        self.closed.set_result(None)
        self._places.free(self)
        self._forget_unread()
        self._received.clear()
        if state is WITHOUT_ROOM:
            self._budget.withdraw(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.stop()
        claimed, self._claimed = self._claimed, 0
        self._budget.release(self.owner, claimed)

    def pause_writing(self) -> None:
        self.blocked = True
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.pause_reading()
        left = unacknowledged_bytes(self._transport)
        if self._behind_since is None:
            self._behind_since, self._taken_before = self._loop.time(), self._written - left
        self._count_unread(left)

    def resume_writing(self) -> None:
        self.blocked = False
        self._forget_unread()
        if self._exchange is not None and self._exchange.source is not None:
            self._exchange.source.resume_reading()
        self._advance()

    # Memory

    def _claim(self) -> None:
        """Take room for what arrived, and return that of what was refused or does not wait any more."""
        held = self._reader.held
        size = held - self._claimed
        if size > 0:
            if not self._claimed:
                self.owner = self._application.owner(self._reader.fields, self._peer)
            if self._budget.claim(size, held, self):
                self._claimed = held
            else:
                self._pause(WITHOUT_ROOM)
        elif size < 0:
            self._return(-size)

    def _return(self, size: int) -> None:
        self._claimed -= size
        self._budget.release(self.owner, size)

    def _count_unread(self, size: int) -> None:
        """Count what the client has not taken, which may reset this connection or another one."""
        if self._unread_owner is None:
            claimed = self.owner if self._claimed else ""
            self._unread_owner = claimed or self._application.owner(self._reader.fields, self._peer)
        self._unread.count(self._unread_owner, self, size)

    def _forget_unread(self) -> None:
        if self._unread_owner is not None:
            self._unread.forget(self._unread_owner, self)
            self._unread_owner = None

    def pack_body(self, data: bytes | None) -> None:
        assert self._exchange is not None
        request = self._exchange.request
        size = request.held
        request.pack(data)
        self._reader.held -= size - request.held
        if data is None:
            self._budget.unkeep(self)
        self._return(size - request.held)
        if data is not None:
            self._budget.keep(self, len(data))

    def forget_body(self) -> None:
        """Give up the packed body."""
        self.pack_body(None)

    def claim_unpacked(self) -> bool:
        assert self._exchange is not None
        request = self._exchange.request
        size = request.body_size - request.held
        self._budget.unkeep(self)
        if not self._budget.claim_now(self.owner, size):
            return False
        self._reader.held += size
        self._claimed += size
        return True

    def admit(self) -> None:
        """Go on with the requests whose bodies waited for room."""
        assert self._state is WITHOUT_ROOM
        self._state = PAUSED
        self._claimed = self._reader.held
        self._advance()

    # Answers

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def _advance(self) -> None:
        """Begin the next answer if the one before has ended."""
        if self._state is WITHOUT_ROOM:
            return
        if not self._received:
            if self._state is PAUSED:
                self._resume()
            if self._exchange is None:
                self._rest()
        elif self._exchange is not None or self.blocked:
            self._pause(PAUSED)
        else:
            self._places.note_busy(self)
            received = self._reader.take()
            if (forwarded_for := self._reader.fields.get(FORWARDED_FOR)) != self._forwarded_for:
                self._forwarded_for = forwarded_for
                self.sender = self._application.address(self._peer, forwarded_for)
            if self._reader.held != self._claimed:
                self._claim()
            if isinstance(received, Refusal):
                self.closing = True
                self._exchange = exchange = Exchange(self, received.request, id_line(received.request))
                exchange.begin(self._application.refuse(exchange, received.error))
            else:
                if received.last:
                    self.closing = True
                self._exchange = exchange = Exchange(self, received, id_line(received))
                exchange.begin(self._application.answer(exchange))
            if self._exchange is not None:
                if self._received:
                    self._pause(PAUSED)
                elif self._state is PAUSED:
                    self._resume()  # to see when the client leaves

    def _rest(self) -> None:
        """Let the connection be closed for a new one if it waits for a request or for the rest of one."""
        if not (self._reader.refused or self.blocked) and self._state is READING:
            self._places.note_waiting(self, self._reader.stage)

    def finish(self) -> None:
        """Go on with the next request: the exchange has ended."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.request.packed is not None:
            self._budget.unkeep(self)
        self._last_active = self._loop.time()
        if self.closing:
            self._end()
        elif self._received:
            self._loop.call_soon(self._advance)
        else:
            if self._state is PAUSED:
                self._resume()
            self._rest()
        if exchange is not None and (size := exchange.request.held):
            self._reader.held -= size
            self._claimed -= size
            self._budget.release(self.owner, size)

    def _end(self) -> None:
        """Close the connection after the last answer; a client that still sends gets to read it first."""
        if self._reader.refused and not self._received and not self._transport.is_closing():
            self._resume()
            self._state, self._since = LINGERING, self._loop.time()
            self._transport.write_eof()
        else:
            self._reader.drop_received()
            self._transport.close()

    def _expect_body(self) -> None:
        if not self._busy:
            self.write(CONTINUE)

    def _pause(self, state: State) -> None:
        """Read nothing more for the reason `state`, unless nothing is read already."""
        if self._state is READING:
            self._places.note_busy(self)
            self._state, self._since = state, self._loop.time()
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._state is PAUSED:
            now = self._loop.time()
            self._reader.extend(now, now - self._since)
            self._state = READING
            self._transport.resume_reading()

    # Ends

    def close(self) -> None:
        """Close the connection after what was written."""
        self._transport.close()

    def close_when_idle(self) -> None:
        """Accept no further requests, and close once those that have arrived are answered."""
        self.closing = True
        if self._idle:
            self._transport.close()

    def give_way(self) -> None:
        """Close the connection, which waits for a request or for the rest of one."""
        self._transport.close()

    def abort(self) -> None:
        """Reset the connection, whatever is in flight."""
        self._transport.abort()

    def extend(self, now: float, seconds: float) -> None:
        """Extend all times: the router stood still for `seconds` before this time (of the event loop)."""
        self._reader.extend(now, seconds)
        self._since = min(now, self._since + seconds)
        if self._behind_since is not None:
            self._behind_since = min(now, self._behind_since + seconds)
        self._last_active = min(now, self._last_active + seconds)

    def sweep(self, now: float) -> None:
        """End what has taken too long at this time (of the event loop)."""
        limits = self._limits
        if self._state is CLOSED:
            return
        if self._taken != self._written:
            self._check_reading(now)
        if self.blocked:
            return
        if self._state is LINGERING:
            if now - self._since > limits.linger_seconds:
                self.close()
        elif self._state is WITHOUT_ROOM:
            if now - self._since > limits.room_seconds:
                self._give_up_waiting()
        elif self._reader.receiving:
            if self._state is READING:
                self._reader.check_times(now)
                if self._reader.refused:
                    self._claim()
                    self._advance()
        elif not self._busy and now - self._last_active > limits.idle_seconds:
            self.abort()

    def _check_reading(self, now: float) -> None:
        """Count what a client that is behind has not taken, and reset its connection if it takes too little."""
        left = unacknowledged_bytes(self._transport)
        taken = self._written - left
        stands = taken == self._taken
        self._taken = taken
        if not left or not (self.blocked or stands):
            self._behind_since = None
            self._forget_unread()
            return
        if self._behind_since is None:
            self._behind_since, self._taken_before = now, taken
        elif now - self._behind_since > self._limits.unread_seconds:
            if taken - self._taken_before < LEAST_RATE * self._limits.unread_seconds:
                self._unread.give_up(self)
                return
            self._behind_since, self._taken_before = now, taken
        self._count_unread(left)

    def _give_up_waiting(self) -> None:
        """Refuse the requests whose bodies wait for room."""
        assert self._state is WITHOUT_ROOM
        self._state = PAUSED
        self._budget.withdraw(self)
        self._reader.refuse_all(buffer_full())
        self._claim()
        self._advance()

    @property
    def _busy(self) -> bool:
        return self._exchange is not None or bool(self._received)

    @property
    def _idle(self) -> bool:
        return not (self._busy or self._reader.receiving or self._reader.refused)
