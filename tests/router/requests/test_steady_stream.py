"""Streams in their steady state are forwarded as the parser and the reader of events forward them."""

import asyncio
import dataclasses
import socket
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resumable_streams import WHOLE, Stream, read, reset

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS
from engine_server.router.http.upstream import EngineConnection
from engine_server.router.http.wire import Request, chunk
from engine_server.router.metrics import Metrics
from engine_server.router.requests.answer_memory import FREE_BYTES
from engine_server.router.requests.journal import FREE_TOKENS, MAX_TOKENS
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.outcome import Outcome
from engine_server.router.requests.relay import Relay
from engine_server.router.requests.steady_stream import ReportedStream, UnreportedStream
from engine_server.router.requests.watch import WatchTimes

SEED = -(1 << 63)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: m\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = TokenReport(SEED, [1], 1, id="a", created=4, prompt_tokens=9).encode()
EVENT = b'data: {"n": 1}\n\n'
LAST = TokenReport(SEED, events=1, usage=ReportedUsage(9, 4)).encode() + b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
UNIX, _ = socket.socketpair()


class Transport:
    """The transport of an engine's connection, whose reads the test delivers."""

    def __init__(self) -> None:
        self.protocol = None
        self.aborted = False

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_extra_info(self, name):
        return UNIX

    def set_write_buffer_limits(self, high):
        pass

    def writelines(self, buffers):
        pass

    def resume_reading(self):
        pass

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True


class Client:
    """Records each write."""

    closing = blocked = False

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.write = self.writes.append

    def finish(self):
        pass


class Pool:
    """Counts connections that are kept, and those that are lost while they are idle."""

    def __init__(self) -> None:
        self.kept = self.lost = 0

    def put(self, connection):
        self.kept += 1

    def discard(self, connection):
        self.lost += 1


class UnsteadyRelay(Relay):
    """A relay whose streams never have a steady state."""

    def steady_state(self, data):
        return None


class Delivery:
    """One answer, read by read."""

    def __init__(self, kind: type[Relay] = Relay, *, budget: int = 1 << 30, http11: bool = True) -> None:
        request = Request(
            b"POST", b"/v1/completions", b"", {}, bytearray(), http11=http11, last=False, id=b"id"
        )
        self.client, self.pool, self.transport = Client(), Pool(), Transport()
        self.budget = BodyBudget(budget)
        self.lifecycle = Lifecycle(Metrics(), request)
        self.lifecycle.deployment = Key("default", "m")
        self.connection = EngineConnection(self.pool, ANSWER_FIELDS)
        self.transport.set_protocol(self.connection)
        self.connection.connection_made(self.transport)
        exchange = Exchange(self.client, request)
        self.relay = kind(exchange, self.lifecycle, self.budget, self.connection)
        self.connection.receive(self.relay)
        exchange.begin(self._answer())
        self.error = ""

    async def _answer(self):
        try:
            await self.relay
        finally:
            self.connection.release()

    def read(self, data: bytes) -> None:
        if self.transport.aborted or self.error:
            return
        try:
            self.transport.protocol.data_received(data)
        except Exception as error:
            self.error = repr(error)

    def lose(self, error: Exception | None) -> None:
        self.transport.protocol.connection_lost(error)

    @property
    def journal(self):
        return self.lifecycle.journal

    @property
    def state(self):
        """All that is seen of the answer from outside."""
        relay, journal = self.relay, self.journal
        received, relay.received = relay.received, False
        recorded = journal and {
            field.name: getattr(journal, field.name)
            for field in dataclasses.fields(journal)
            if field.name not in ("memory", "id_text")
        }
        return {
            "writes": [*self.client.writes],
            "journal": recorded,
            "token_ids": journal and journal.token_ids,
            "resumable": journal and journal.state,
            "memory": self.budget.used,
            "outcome": relay.outcome,
            "error": self.error,
            "events": relay.events and (relay.events.broken, relay.events.starved, relay.events.error),
            "received": received,
            "answered": self.lifecycle.time_to_first_byte is not None,
            "rejections": self.lifecycle.metrics.rejections.counts,
            "connection": (self.transport.aborted, self.pool.kept, self.pool.lost),
        }


# Streams that are mostly as engines write them


def mostly(usual, *unusual):
    """Return a strategy of which one example in forty is one of the unusual ones."""
    return st.integers(1, 40).flatmap(lambda number: st.sampled_from(unusual) if number == 40 else usual)


ids = mostly(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))),
    *("", "0", "00", "01", "-1", "-0", "1.0", "1e3", "null", "1, 2", "1,", "999999999", "1000000000"),
    *(str(1 << 31), str((1 << 31) + 1), str(1 << 64), ",".join(["7"] * 5000), ",".join(["7"] * 140_000)),
)
seeds = mostly(
    st.just(str(SEED)), "7", "-0", "01", str(1 << 63), str(SEED - 1), "9" * 25, '"7"', str(SEED) + ".0"
)
counts = mostly(st.just("1"), "0", "2", "01", "1.0", "-1", str(1 << 40))
further = mostly(
    st.just(""), ',"usage":{"prompt_tokens":9,"completion_tokens":4}', ',"more":1', ',"events":2', " "
)
events = mostly(
    st.sampled_from([EVENT, b"event: delta\ndata: {}\n\n", 'data: "\u2028 é : \\n\\n"\n\n'.encode()]),
    *(
        b": keep-alive\n\n",
        b"data: a\n: note\n\n",
        b"data: a\r\n\r\n",
        b"data: a\n\r\n",
        b"\n\n",
        b"\r\n\n",
        b"\n",
    ),
    *(
        b"data: a\n\ndata: b\n\n",
        b"data: [DONE]\n\n",
        b"data: a",
        b"data: a\n\n\n",
        b"data: : fairlead {\n\n",
    ),
    *(b'data: {"error":{"message":"a","code":"draining"}}\n\n', b"x\rdata: a\r\n\n", b"data: a\n\n\r\n"),
)
framings = mostly(
    st.just(b"%x\r\n%b\r\n"),
    *(
        b"%X\r\n%b\r\n",
        b"0%x\r\n%b\r\n",
        b"%x;a=b\r\n%b\r\n",
        b"%x\n%b\n",
        b"+%x\r\n%b\r\n",
        b" %x\r\n%b\r\n",
    ),
)
excesses = mostly(st.just(0), -2, -1, 1, 2)
other_reports = (b"", b": fairlead note\n", b": fairlead {\n", b": fairlead {}\n", FIRST, LAST)


@st.composite
def usual_reports(draw):
    parts = draw(seeds), draw(ids), draw(counts), draw(further)
    return b': fairlead {"seed":%b,"token_ids":[%b],"events":%b%b}\n' % tuple(part.encode() for part in parts)


@st.composite
def chunks(draw, reports):
    body = draw(reports) + draw(events)
    return draw(framings) % (max(0, len(body) + draw(excesses)), body)


@st.composite
def reads(draw):
    """The reads of one answer, of which most are one chunk each, and some bytes are wrong."""
    reported = draw(st.booleans())
    reports = mostly(usual_reports() if reported else st.just(b""), *other_reports)
    parts = [
        HEAD + chunk((FIRST if reported else b"") + EVENT),
        *draw(st.lists(chunks(reports), min_size=3, max_size=12)),
    ]
    parts += draw(st.sampled_from([[], [END], [chunk(LAST), END]]))
    stream = bytearray(b"".join(parts))
    if draw(st.booleans()):
        at = draw(st.integers(len(parts[0]), len(stream)))
        stream[at : at + 1] = draw(st.binary(max_size=1))
    boundaries = list(accumulate(map(len, parts)))
    cuts = {0, *boundaries} - {*draw(st.lists(st.sampled_from(boundaries), max_size=2))}
    cuts |= {*draw(st.lists(st.integers(0, len(stream)), max_size=2)), len(stream)}
    return [bytes(stream[start:end]) for start, end in pairwise(sorted(cuts))]


@given(reads(), st.sampled_from([1, 3 * FREE_BYTES, 1 << 30]), st.sampled_from([None, OSError(), "open"]))
def test_a_stream_is_the_same_with_and_without_a_steady_state(pieces, budget, end):
    steady, unsteady = Delivery(budget=budget), Delivery(UnsteadyRelay, budget=budget)
    for piece in pieces:
        steady.read(piece)
        unsteady.read(piece)
        assert steady.state == unsteady.state
    if end != "open":
        steady.lose(end)
        unsteady.lose(end)
        assert steady.state == unsteady.state


@pytest.mark.parametrize(("report", "kind"), [(FIRST, ReportedStream), (b"", UnreportedStream)])
def test_a_steady_state_begins_after_a_read_of_one_chunk_and_ends_at_another_one(report, kind):
    delivery = Delivery()
    following = chunk((TokenReport(SEED, [7], 1).encode() if report else b"") + EVENT)

    def protocol_after(data):
        delivery.read(data)
        return type(delivery.transport.protocol)

    assert protocol_after(HEAD + chunk(report + EVENT)) is EngineConnection
    assert protocol_after(following) is kind
    assert protocol_after(following[:20]) is EngineConnection
    assert protocol_after(following[20:]) is EngineConnection
    assert protocol_after(following) is kind
    assert protocol_after(following * 2) is EngineConnection
    assert delivery.journal.events == 6


FOLLOWING = TokenReport(SEED, [7], 1).encode() + EVENT
LIES = {
    "seed beyond 64 bits": chunk(FOLLOWING.replace(b"%d" % SEED, b"%d" % (1 << 63))),
    "token id beyond the range": chunk(FOLLOWING.replace(b"[7]", b"[%d]" % ((1 << 31) + 1))),
    "token id in two numbers": chunk(FOLLOWING.replace(b"[7]", b"[07]")),
    "negative number of events": chunk(FOLLOWING.replace(b'"events":1', b'"events":-1')),
    "too small a length": b"%x\r\n%b\r\n" % (len(FOLLOWING) - 1, FOLLOWING),
    "too large a length": b"%x\r\n%b\r\n" % (len(FOLLOWING) + 1, FOLLOWING),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_report_that_lies_in_the_steady_state_breaks_the_attempt_as_at_any_other_time(lie):
    steady, unsteady = Delivery(), Delivery(UnsteadyRelay)
    for delivery in (steady, unsteady):
        delivery.read(HEAD + chunk(FIRST + EVENT))
        delivery.read(chunk(FOLLOWING))
        delivery.read(lie)
        delivery.read(chunk(FOLLOWING))

    assert steady.state == unsteady.state
    assert steady.relay.outcome is Outcome.INTERRUPTED and steady.transport.aborted
    assert steady.journal.state.resumable


def test_a_stream_of_many_tokens_stays_in_its_steady_state_and_claims_memory_for_them():
    delivery = Delivery()
    count = 1000
    following = chunk(TokenReport(SEED, [100_000] * count, 1).encode() + EVENT)
    delivery.read(HEAD + chunk(FIRST + EVENT))

    claimed = []
    for _ in range(MAX_TOKENS // count):
        delivery.read(following)
        assert isinstance(delivery.transport.protocol, ReportedStream)
        claimed.append(delivery.budget.used)
    kept = delivery.journal.token_ids
    delivery.read(following)

    assert claimed[FREE_TOKENS // count - 1] == 0
    assert claimed[FREE_TOKENS // count] == FREE_BYTES
    assert kept == [1] + [100_000] * (MAX_TOKENS // count * count)
    assert isinstance(delivery.transport.protocol, ReportedStream)
    assert not delivery.journal.state.resumable and not delivery.journal.token_ids
    assert delivery.journal.num_tokens == len(kept) + count


def test_a_stream_for_a_client_without_chunks_has_no_steady_state():
    delivery = Delivery(http11=False)
    delivery.read(HEAD + chunk(EVENT))
    delivery.read(chunk(EVENT))
    assert delivery.transport.protocol is delivery.connection


async def stall(engine, request, writer, number):
    await asyncio.Event().wait()


@pytest.mark.parametrize("failure", [reset, stall])
async def test_a_stream_whose_engine_is_lost_in_the_steady_state_is_continued(
    start_engine, start_router, eventually, failure
):
    protocols = []

    async def fail_at_last(engine, request, writer, number):
        """Send each event once the client has the one before, and fail before that of the number 4."""
        (relay,) = router.server._watch.open
        await eventually(lambda: relay.events is not None and relay.lifecycle.journal.events == number)
        if number == 4:
            protocols.append(type(relay.exchange.source.get_protocol()))
            await failure(engine, request, writer, number)

    stream = Stream(1, 2, 3, 4, failure=fail_at_last)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.02, late=0.1, stall=0.3))

    assert await read(router) == WHOLE
    assert await read(router) == WHOLE

    assert protocols == [ReportedStream]
    assert stream.continued == 1


async def test_a_connection_is_kept_after_a_steady_state(start_engine, start_router, eventually):
    async def proceed(engine, request, writer, number):
        (relay,) = router.server._watch.open
        await eventually(lambda: relay.events is not None and relay.lifecycle.journal.events == number)

    engine = await start_engine(Stream(1, 2, 3, 4, 5, failure=proceed))
    router = await start_router({"m": [engine]})

    assert await read(router) == WHOLE
    assert await read(router) == WHOLE

    assert engine.connections == 1
