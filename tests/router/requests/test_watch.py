"""The watch: attempts whose engine is silent, and says nothing to probes either."""

import asyncio
from time import perf_counter

import pytest
from resumable_streams import KEEP_ALIVE, WHOLE, Stream, chunk, read
from waiting import until, until_async

from engine_server.contract.cluster.api import Key
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS
from engine_server.router.http.wire import Fields, Request
from engine_server.router.metrics import Metrics
from engine_server.router.requests import watch
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.outcome import Outcome
from engine_server.router.requests.relay import Relay
from engine_server.router.requests.watch import MAX_FAILED_PROBES, Watch, WatchTimes
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.health import Health

POST = (
    b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    b'Host: localhost\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
)
TIMES = WatchTimes(sweep=0.01, silence=0.03, probe_interval=0.01, probe_timeout=0.05, refusal=0.05)


class Client:
    """A client that reads whatever it is sent."""

    closing = False

    def write(self, data: bytes) -> None:
        pass


class Clock:
    """Sweeps of a watch over attempts at one endpoint, at times that a test chooses, and its probes."""

    def __init__(self, monkeypatch) -> None:
        self.times = WatchTimes(probe_interval=0.0)
        self.watch = Watch(Health(), self.times)
        self.now = 0.0
        self.endpoint = Endpoint(Key("default", "m"), Address("192.0.2.1", 1))
        self.sent = 0
        self._results: asyncio.Queue[int | None] = asyncio.Queue()
        monkeypatch.setattr(watch, "probe", self._probe)

    async def _probe(self, *_) -> int | None:
        self.sent += 1
        return await self._results.get()

    async def end_probe(self, status: int | None) -> None:
        """End the probe that is sent, and wait for the next one."""
        before = self.sent
        self._results.put_nowait(status)
        await until_async(lambda: self.sent > before)

    def begin(self, *, streams: bool, **lines: str) -> Relay:
        """Return an attempt whose engine says nothing from now on. lines: more of its head."""
        request = Request(b"POST", b"/v1/completions", b"", {}, b"{}", http11=True, last=False, id=b"id")
        relay = Relay(Exchange(Client(), request), Lifecycle(Metrics(), request))
        relay.lifecycle.endpoint = self.endpoint
        if streams:
            fields = Fields(ANSWER_FIELDS)
            fields.add(b"Content-Type", b"text/event-stream")
            for name, value in lines.items():
                fields.add(name.replace("_", "-").encode(), value.encode())
            relay.on_head(200, b"OK", fields)
            relay.flush()
        self.watch.open.add(relay)
        self.watch.sweep(self.now)
        return relay

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass, in which sweeps are as frequent as they should be."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.times.sweep
            self.watch.sweep(self.now)


@pytest.mark.parametrize(
    ("lines", "event", "seconds"),
    [
        ({"Fairlead_Model": "w"}, b"", 45.0),
        ({}, b"", 600.0),
        ({}, b"data: {}\n\n", 45.0),
        ({"Content_Encoding": "gzip"}, b"\x1f\x8b", 600.0),
    ],
    ids=["ours", "another make", "another make, after its first event", "compressed"],
)
async def test_silent_stream_is_broken_off_though_probes_are_answered(monkeypatch, lines, event, seconds):
    clock = Clock(monkeypatch)
    relay = clock.begin(streams=True, **lines)
    if event:
        relay.on_body(event)
        relay.flush()
        clock.watch.sweep(clock.now)
    clock.pass_seconds(seconds - 1.0)
    assert relay.outcome is None
    clock.pass_seconds(1.0)
    assert relay.outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize("streams", [True, False])
async def test_three_failed_probes_break_an_attempt_that_is_silent(monkeypatch, streams):
    clock = Clock(monkeypatch)
    relay = clock.begin(streams=streams)
    clock.pass_seconds(clock.times.silence - clock.times.sweep)
    assert not clock.sent
    clock.pass_seconds(clock.times.sweep)
    await until_async(lambda: clock.sent)
    for _ in range(MAX_FAILED_PROBES - 1):
        await clock.end_probe(None)
    clock.pass_seconds(clock.times.sweep)
    assert relay.outcome is None

    await clock.end_probe(None)
    clock.pass_seconds(clock.times.sweep)

    assert relay.outcome is (Outcome.INTERRUPTED if streams else Outcome.SILENT)


async def test_a_probe_that_is_answered_begins_the_series_anew(monkeypatch):
    clock = Clock(monkeypatch)
    relay = clock.begin(streams=True)
    clock.pass_seconds(clock.times.silence)
    await until_async(lambda: clock.sent)
    for status in (None, None, 503, None, None):
        await clock.end_probe(status)
        clock.pass_seconds(clock.times.sweep)
    assert relay.outcome is None


async def test_probes_from_before_an_attempt_was_silent_do_not_count_for_it(monkeypatch):
    clock = Clock(monkeypatch)
    clock.begin(streams=False)
    clock.pass_seconds(clock.times.silence)
    await until_async(lambda: clock.sent)
    await clock.end_probe(None)
    clock.pass_seconds(clock.times.sweep)
    later = clock.begin(streams=True)
    clock.pass_seconds(clock.times.silence)
    for _ in range(MAX_FAILED_PROBES):  # of which the first was sent before
        await clock.end_probe(None)
    clock.pass_seconds(clock.times.sweep)
    assert later.outcome is None

    await clock.end_probe(None)
    clock.pass_seconds(clock.times.sweep)

    assert later.outcome is Outcome.INTERRUPTED


async def test_a_late_sweep_begins_silences_and_probes_anew(monkeypatch):
    """As if the loop was blocked: the last probe failed for that reason, and what has arrived was not read yet."""
    clock = Clock(monkeypatch)
    relay = clock.begin(streams=True)
    clock.pass_seconds(clock.times.silence)
    await until_async(lambda: clock.sent)
    for _ in range(MAX_FAILED_PROBES):
        await clock.end_probe(None)

    clock.now += clock.times.sweep + 3.0
    clock.watch.sweep(clock.now)

    assert relay.outcome is None
    sent = clock.sent
    clock.pass_seconds(clock.times.silence - clock.times.sweep)
    assert (relay.outcome, clock.sent) == (None, sent)
    clock.pass_seconds(clock.times.sweep)
    await until_async(lambda: clock.sent > sent)


async def test_no_stream_is_continued_elsewhere_because_the_loop_was_blocked(
    start_engine, start_router, eventually
):
    stall, released = 0.7, asyncio.Event()

    async def send_comments(engine, request, writer, number):
        async def send() -> bool:
            chunk(writer, KEEP_ALIVE)
            await writer.drain()
            return released.is_set()

        await until_async(send)

    engines = [await start_engine(Stream(1, failure=send_comments)) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.02, late=0.1, stall=stall))
    async with router.chat(stream=True) as response:
        begun = await response.content.readuntil(KEEP_ALIVE)
        (relay,) = router.server._watch.open
        await eventually(lambda: not relay.received)  # the next sweep is the first after the block
        end = perf_counter() + 2 * stall

        until(lambda: perf_counter() > end)

        await eventually(lambda: perf_counter() > end + stall)
        released.set()
        whole = begun + await response.read()
    assert whole.replace(KEEP_ALIVE, b"") == WHOLE
    assert sum(len(engine.received) for engine in engines) == 1
    assert await router.metric(r"fairlead_router_resumed_total\{.*\}") == 0


async def say_nothing(engine, request, writer):
    await asyncio.Event().wait()


async def test_retries_on_another_replica_when_an_engine_answers_neither_requests_nor_probes(
    start_engine, start_router, eventually
):
    stopped, good = await start_engine(say_nothing), await start_engine()
    router = await start_router({"m": [stopped, good]}, policy="round_robin", watch=TIMES)
    stopped.mute = True

    for _ in range(4):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port

    assert len(stopped.received) == 1
    await eventually(stopped.hung_up.is_set)
    assert await router.metric(r'fairlead_router_retries_total\{reason="silent"\}') == 1
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 1


async def test_sends_no_request_again_to_an_engine_that_was_silent_on_a_kept_connection(
    start_engine, start_router
):
    async def behave(engine, request, writer):
        if engine.mute:
            await asyncio.Event().wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    async with router.chat() as response:
        assert response.status == 200
    engine.mute = True

    async with router.chat() as response:
        assert response.status == 503
    assert len(engine.received) == 2


async def test_a_stream_whose_engine_answers_no_probes_continues_on_another_replica(
    start_engine, start_router
):
    async def stop(engine, request, writer, number):
        engine.mute = True
        await asyncio.Event().wait()

    stream = Stream(3, failure=stop)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines}, watch=TIMES)

    assert await read(router) == WHOLE

    assert [len(engine.received) for engine in engines] == [1, 1]
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 1


async def test_a_stream_whose_engine_answers_probes_stays_there(start_engine, start_router, eventually):
    async def think(engine, request, writer, number):
        probes = engine.probes
        await eventually(lambda: engine.probes >= probes + 6)

    engines = [await start_engine(Stream(3, failure=think)) for _ in range(2)]
    router = await start_router({"m": engines}, watch=TIMES)
    assert await read(router) == WHOLE
    assert sum(len(engine.received) for engine in engines) == 1


@pytest.mark.parametrize("ready", [True, False])
async def test_waits_for_an_engine_that_answers_probes_with_any_status(
    start_engine, start_router, eventually, ready
):
    """A 503 of `/ready` is an answer as well: an engine that drains finishes what it has."""
    probed_often = asyncio.Event()

    async def behave(engine, request, writer):
        engine.ready = ready
        probes = engine.probes
        await eventually(lambda: engine.probes >= probes + 6)
        probed_often.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    async with router.chat() as response:
        assert await response.read() == b"ok"
    assert probed_often.is_set() and len(engine.received) == 1


async def test_an_answer_that_stays_silent_after_its_first_bytes_is_cut(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, watch=TIMES)
    engine.mute = True

    answer = await router.raw(POST)

    assert answer.endswith(b"\r\n\r\nhalf")
    assert await router.metric("fairlead_router_interrupted_total") == 1


async def test_does_not_probe_the_engine_of_a_client_that_reads_slowly(
    start_engine, start_router, eventually
):
    """Its answer makes no progress, but the engine is not the cause. The probes of another engine show the time."""
    size = 2**25
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size

    async def behave(engine, request, writer):
        writer.write(answer)

    engine, silent = await start_engine(behave), await start_engine(say_nothing)
    router = await start_router({"m": [engine], "silent": [silent]}, watch=TIMES)
    reader, writer = await router.connect()
    reader._transport.pause_reading()  # asyncio's own reader would take everything
    writer.write(POST)
    await eventually(lambda: router.server._watch.open)
    (relay,) = router.server._watch.open
    await eventually(lambda: not relay.exchange.source.is_reading())
    _, silent_writer = await router.connect()
    silent_writer.write(POST.replace(b'"m"', b'"silent"').replace(b"13", b"18"))
    await eventually(lambda: silent.probes > 5)  # one that was sent before the client blocked has ended
    probes = engine.probes
    await eventually(lambda: silent.probes > 15)

    assert engine.probes == probes
    reader._transport.resume_reading()
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(await reader.readexactly(size)) == size
    writer.close()
    silent_writer.close()


async def test_retries_without_the_rest_of_an_error_that_stays_silent(start_engine, start_router, eventually):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 10\r\n\r\n")
        await asyncio.Event().wait()

    bad, good = await start_engine(behave), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin", watch=TIMES)
    bad.ready = False
    for _ in range(2):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    await eventually(bad.hung_up.is_set)
    assert await router.metric(r'fairlead_router_retries_total\{reason="refused"\}') == 1
