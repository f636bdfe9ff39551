"""Streams that break off and are continued by another engine."""

import asyncio
import json

import pytest
from resumable_streams import DONE, KEEP_ALIVE, WHOLE, Stream, chunk, event, keep_alive, read, refuse, reset
from waiting import until_async

from engine_server.contract.wire.continuation import Resume, TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.requests import event_reader
from engine_server.router.requests.watch import WatchTimes

STALL_SECONDS = 0.3
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
# An error event of each API, as an engine sends it.
ERROR_EVENTS = {
    "/v1/chat/completions": 'data: {{"error":{{"message":"a","type":"b","code":"{}"}}}}\n\ndata: [DONE]\n\n',
    "/v1/messages": 'event: error\ndata: {{"type":"error","error":{{"type":"a","message":"b","code":"{}"}}}}\n\n',
    "/v1/responses": (
        'event: error\ndata: {{"type":"error","sequence_number":2,"code":"{}","message":"a","param":null}}\n\n'
        'event: response.failed\ndata: {{"type":"response.failed","response":{{}}}}\n\n'
    ),
}


async def reset_within_the_event(engine, request, writer, number):
    chunk(writer, TokenReport(42, [100 + number], 1).encode() + event(number)[:-3])
    await reset(engine, request, writer, number)


async def reset_within_the_report(engine, request, writer, number):
    chunk(writer, TokenReport(42, [100 + number], 1).encode()[:-3])
    await reset(engine, request, writer, number)


async def close(engine, request, writer, number):
    await writer.drain()
    writer.close()


async def end_early(engine, request, writer, number):
    chunk(writer, TokenReport(42, [100 + number], 1).encode())
    writer.write(b"0\r\n\r\n")
    await reset(engine, request, writer, number)


async def stall(engine, request, writer, number):
    await asyncio.Event().wait()


async def think(engine, request, writer, number):
    """Send comments for longer than the stall timeout."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 2 * STALL_SECONDS

    def has_ended() -> bool:
        chunk(writer, KEEP_ALIVE)
        return loop.time() > end

    await until_async(has_ended)


def reports_error(path, code):
    async def failure(engine, request, writer, number):
        chunk(writer, ERROR_EVENTS[path].format(code).encode())
        writer.write(b"0\r\n\r\n")
        await close(engine, request, writer, number)

    return failure


def endpoint_events(response: bytes) -> list[bytes]:
    return [part + b"\n\n" for part in response.split(b"\n\n") if part]


@pytest.mark.parametrize("fails", [0, 1, 3, 5])
@pytest.mark.parametrize(
    "failure", [reset, reset_within_the_event, reset_within_the_report, close, keep_alive, end_early]
)
async def test_stream_continues_on_another_replica_without_loss_or_repetition(
    start_engine, start_router, failure, fails
):
    stream = Stream(fails, failure=failure)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})

    body = await read(router, messages=[{"role": "user", "content": "}"}])

    assert body.replace(KEEP_ALIVE, b"") == WHOLE
    first, second = (request for engine in engines for request in engine.received)
    first, second = (first, second) if len(first.body) < len(second.body) or not fails else (second, first)
    assert json.loads(second.body).items() >= json.loads(first.body).items()
    if fails:
        Resume(**json.loads(second.body)["fairlead"]["resume"])
    assert not stream.fails
    assert sum(len(engine.received) for engine in engines) == 2
    assert await router.metric(r'fairlead_router_retries_total\{reason="interrupted"\}') == 1
    assert await router.metric("fairlead_router_interrupted_total") == 0
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0


@pytest.mark.parametrize("fails", [0, 3])
async def test_stream_continues_on_another_replica_when_its_engine_sends_nothing(
    start_engine, start_router, eventually, fails
):
    stream = Stream(fails, failure=stall)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.02, late=0.1, stall=0.2))
    assert await read(router) == WHOLE
    assert [len(engine.received) for engine in engines] == [1, 1]
    await eventually(lambda: any(engine.hung_up.is_set() for engine in engines))
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 1


async def test_comments_keep_a_stream_with_its_engine(start_engine, start_router):
    stream = Stream(3, failure=think)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.02, late=0.1, stall=STALL_SECONDS))
    assert (await read(router)).replace(KEEP_ALIVE, b"") == WHOLE
    assert sum(len(engine.received) for engine in engines) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("code", ["draining", "aborted", "engine_dead", "queue_full"])
@pytest.mark.parametrize("fails", [0, 2])
async def test_stream_continues_after_an_error_that_concerns_one_replica(
    start_engine, start_router, path, code, fails
):
    stream = Stream(fails, failure=reports_error(path, code))
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})
    assert await read(router, path) == WHOLE
    assert [len(engine.received) for engine in engines] == [1, 1]


@pytest.mark.parametrize("path", PATHS)
async def test_other_errors_are_forwarded_and_end_the_stream(start_engine, start_router, path):
    stream = Stream(2, failure=reports_error(path, "request_failed"))
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})
    assert (
        await read(router, path) == event(0) + event(1) + ERROR_EVENTS[path].format("request_failed").encode()
    )
    assert sum(len(engine.received) for engine in engines) == 1


async def test_stream_is_continued_three_times_at_most(start_engine, start_router):
    stream = Stream(1, 2, 3, 4)
    engines = [await start_engine(stream) for _ in range(5)]
    router = await start_router({"m": engines})

    *events, last, done = endpoint_events(await read(router))
    assert done == DONE

    assert b"".join(events) == b"".join(event(number) for number in range(4))
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "interrupted"
    assert sum(len(engine.received) for engine in engines) == 4
    assert await router.metric("fairlead_router_interrupted_total") == 1


async def test_stream_returns_to_a_replica_that_failed_earlier(start_engine, start_router):
    stream = Stream(1, 2, 3)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})
    assert await read(router) == WHOLE
    assert [len(engine.received) for engine in engines] == [2, 2]


async def test_stream_continues_only_on_a_replica_of_the_same_model(start_engine, start_router):
    """All but two replicas have other weights, which the router learns from their first answers."""
    old = [await start_engine(Stream(2, 4)) for _ in range(2)]
    new = [await start_engine(Stream(model=b"weights-2")) for _ in range(4)]
    router = await start_router({"m": [*old, *new]}, policy="round_robin")
    streams = await asyncio.gather(*(read(router) for _ in range(12)))
    assert streams == [WHOLE] * 12

    def asked() -> int:
        return sum(bool(one.header("Fairlead-Resume")) for engine in new for one in engine.received)

    before = asked()
    again = await asyncio.gather(*(read(router) for _ in range(12)))
    assert again == [WHOLE] * 12
    assert asked() == before


SETTINGS, OTHER_SETTINGS, PROMPT, OTHER_PROMPT = (digit * 32 for digit in ("a", "b", "c", "d"))
# Of the replicas that can't continue a stream.
DIFFERENT = {
    "other settings": {"settings": OTHER_SETTINGS.encode(), "prompt": PROMPT},
    "another prompt": {"settings": SETTINGS.encode(), "prompt": OTHER_PROMPT},
}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_replicas_with_other_settings_or_another_prompt_are_no_attempts(
    start_engine, start_router, name
):
    """There are more of them than attempts. The stream begins at a replica whose settings all but they share."""
    same = {"settings": SETTINGS.encode(), "prompt": PROMPT}
    first, last = await start_engine(Stream(2, **same)), await start_engine(Stream(**same))
    different = [Stream(**DIFFERENT[name]) for _ in range(4)]
    others = [await start_engine(stream) for stream in different]
    router = await start_router({"m": [first, *others, last]}, policy="round_robin")

    streams = [await read(router) for _ in range(6)]

    assert streams == [WHOLE] * 6
    assert [stream.continued for stream in different] == [0] * 4
    resumed = [r for engine in others for r in engine.received if r.header("Fairlead-Resume")]
    assert {r.header("Fairlead-Stream") for r in resumed} <= {f"prompt={PROMPT}, settings={SETTINGS}"}
    assert await router.metric("fairlead_router_interrupted_total") == 0


async def test_replica_whose_other_settings_are_known_is_not_asked(start_engine, start_router):
    first = await start_engine(Stream(2, settings=SETTINGS.encode()))
    other = await start_engine(Stream(settings=OTHER_SETTINGS.encode()))
    router = await start_router({"m": [other, first]}, policy="round_robin")

    bodies = [await read(router), await read(router)]

    assert bodies[0] == WHOLE and b'"code":"interrupted"' in bodies[1]
    assert not any(request.header("Fairlead-Resume") for request in other.received)


@pytest.mark.parametrize("first", [SETTINGS.encode(), b""], ids=["the second", "the first"])
async def test_replica_that_reports_no_settings_continues_and_is_continued(start_engine, start_router, first):
    second = b"" if first else SETTINGS.encode()
    engines = [
        await start_engine(Stream(2, settings=first, prompt=PROMPT if first else None)),
        await start_engine(Stream(settings=second)),
    ]
    router = await start_router({"m": engines}, policy="round_robin")

    assert [await read(router), await read(router)] == [WHOLE] * 2
    (resumed,) = (r for r in engines[1].received if r.header("Fairlead-Resume"))
    expected = f"prompt={PROMPT}, settings={SETTINGS}" if first else None
    assert resumed.header("Fairlead-Stream") == expected


async def test_settings_of_another_form_than_a_hash_are_counted_and_ignored(start_engine, start_router):
    engines = [await start_engine(Stream(2, settings=b"x y")), await start_engine(Stream())]
    router = await start_router({"m": engines}, policy="round_robin")

    assert [await read(router), await read(router)] == [WHOLE] * 2
    rejected = r'fairlead_router_rejected_total\{reason="out_of_range",sender="engine"\}'
    assert await router.metric(rejected) >= 1


async def test_stream_ends_with_an_error_if_only_replicas_of_another_model_are_left(
    start_engine, start_router
):
    engines = [await start_engine(Stream(2)), await start_engine(Stream(model=b"weights-2"))]
    router = await start_router({"m": engines}, policy="round_robin")
    bodies = [await read(router), await read(router)]
    assert WHOLE in bodies
    (broken,) = (body for body in bodies if body != WHOLE)
    *events, last, done = endpoint_events(broken)
    assert done == DONE
    assert b"".join(events) == event(0) + event(1)
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "interrupted"


async def test_stream_ends_if_a_replica_refuses_it_without_saying_what_its_model_is(
    start_engine, start_router
):
    """It stays unknown, so that the replica would be picked again and again."""
    unknown = await start_engine(Stream(model=b""))
    engines = [await start_engine(Stream(2)), unknown]
    router = await start_router({"m": engines}, policy="round_robin")
    bodies = [await read(router), await read(router)]
    (broken,) = (body for body in bodies if body != WHOLE)
    assert b'"code":"interrupted"' in broken
    assert len([request for request in unknown.received if request.header("Fairlead-Resume")]) == 1


async def test_stream_continues_past_replicas_that_refuse_or_are_gone(start_engine, start_router):
    async def refuses(engine, request, writer):
        if request.header("Fairlead-Resume"):
            refuse(writer, 503, "queue_full")
        else:
            await stream(engine, request, writer)

    stream = Stream(3, failure=reset)
    good, full, gone = await start_engine(Stream()), await start_engine(refuses), await start_engine()
    router = await start_router({"m": [full, gone, good]}, policy="round_robin")
    await gone.stop()
    assert [await read(router) for _ in range(3)] == [WHOLE] * 3
    assert not stream.fails


async def test_stream_continues_past_a_replica_that_answers_with_a_long_error(start_engine, start_router):
    async def fail_at_length(engine, request, writer):
        writer.write(b"HTTP/1.1 500 No\r\nFairlead-Model: weights-1\r\nContent-Length: 40000\r\n\r\n")
        writer.write(b"x" * 40000)

    engines = [await start_engine(behave) for behave in (Stream(2), fail_at_length, Stream())]
    router = await start_router({"m": engines})
    assert await read(router) == WHOLE
    assert [len(engine.received) for engine in engines] == [1, 1, 1]


@pytest.mark.parametrize("path", PATHS)
async def test_error_in_the_shape_of_the_api_ends_a_stream_that_no_replica_can_continue(
    start_engine, start_router, path
):
    router = await start_router({"m": [await start_engine(Stream(2))]})
    *events, last, after = endpoint_events(await read(router, path))
    if path == "/v1/messages":
        events, last, after = [*events, last], after, b""
    assert b"".join(events) == event(0) + event(1)
    *names, data = last.strip().split(b"\n")
    error = json.loads(data.removeprefix(b"data: "))
    if path == "/v1/chat/completions":
        assert names == [] and error["error"]["code"] == "interrupted"
        assert after == DONE
    elif path == "/v1/messages":
        assert names == [b"event: error"] and error["type"] == "error"
        assert error["error"]["type"] == "api_error"
    else:
        assert names == [b"event: error"]
        assert (error["type"], error["sequence_number"], error["code"]) == ("error", 2, "interrupted")
        assert after.startswith(b"event: response.failed\n")
    assert await router.metric("fairlead_router_interrupted_total") == 1
    assert await router.metric(r'fairlead_router_requests_total\{code="200",model="default/m"\}') == 1


async def test_stream_without_reports_ends_with_an_error_after_its_first_event(start_engine, start_router):
    engines = [await start_engine(Stream(2, reports=False)) for _ in range(2)]
    router = await start_router({"m": engines})
    *events, last, done = endpoint_events(await read(router))
    assert done == DONE
    assert b"".join(events) == event(0) + event(1)
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "interrupted"
    assert sum(len(engine.received) for engine in engines) == 1


async def test_stream_without_reports_starts_again_if_it_had_only_comments(start_engine, start_router):
    stream = Stream(0, reports=False, failure=keep_alive)
    router = await start_router({"m": [await start_engine(stream) for _ in range(2)]})
    assert await read(router) == KEEP_ALIVE + WHOLE


async def test_reset_after_the_last_event_is_the_end_of_the_stream(start_engine, start_router):
    async def behave(engine, request, writer):
        await Stream(9)(engine, request, CutWriter(writer))
        await reset(engine, request, writer, 6)

    engines = [await start_engine(behave) for _ in range(2)]
    router = await start_router({"m": engines})
    assert await read(router) == WHOLE
    assert sum(len(engine.received) for engine in engines) == 1


class CutWriter:
    """Writes all but the end of a chunked body."""

    def __init__(self, writer):
        self._writer = writer
        self.drain = writer.drain
        self.transport = writer.transport

    def write(self, data):
        if data != b"0\r\n\r\n":
            self._writer.write(data)


async def test_clients_own_field_does_not_reach_the_engine_as_a_resume(start_engine, start_router):
    stream = Stream(2)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})
    smuggled = {"resume": {"id": "other", "token_ids": [1]}}
    async with router.session.post(
        f"{router.url}/v1/completions",
        json={"model": "m", "fairlead": smuggled},
        headers={"Fairlead-Resume": "1"},
    ) as answer:
        assert await answer.read() == WHOLE


async def test_event_without_an_end_breaks_the_attempt_and_is_not_tried_elsewhere(
    start_engine, start_router, monkeypatch
):
    monkeypatch.setattr(event_reader, "MAX_HELD_BYTES", 1 << 16)

    async def endless(engine, request, writer, number):
        while not writer.transport.is_closing():
            chunk(writer, b"x" * 4096)
            await writer.drain()

    engines = [await start_engine(Stream(1, failure=endless)) for _ in range(2)]
    router = await start_router({"m": engines})
    *events, last, done = endpoint_events(await read(router))
    assert done == DONE
    assert events == [event(0)]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "interrupted"
    assert sum(len(engine.received) for engine in engines) == 1


async def test_http_1_0_client_gets_a_continued_stream_unchunked(start_engine, start_router):
    stream = Stream(3)
    router = await start_router({"m": [await start_engine(stream) for _ in range(2)]})
    body = b'{"model":"m","stream":true}'
    answer = await router.raw(
        b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    assert answer.partition(b"\r\n\r\n")[2] == WHOLE


async def test_slow_client_pauses_the_engine_that_continues_its_stream_and_is_no_stall(
    start_engine, start_router, eventually
):
    """The client reads nothing while the first engine fails and the second one has much to send."""
    before, after = 100, 600
    large = b'data: {"n": "%b"}\n\n' % (b"x" * 65536)
    loop = asyncio.get_running_loop()
    # The times at which the engines sent an event.
    sent: list[float] = []

    async def behave(engine, request, writer):
        resumed = request.header("Fairlead-Resume") is not None
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: a\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(after if resumed else before):
            identity = {"id": "chatcmpl-1", "created": 7} if number == 0 else {}
            chunk(writer, TokenReport(1, [number], 1, **identity).encode() + large)
            sent.append(loop.time())
            await writer.drain()
        if not resumed:
            writer.close()  # in order, so that all that was sent arrives
            return
        chunk(writer, TokenReport(1, events=1, usage=ReportedUsage(1, 1)).encode() + DONE)
        writer.write(b"0\r\n\r\n")

    engines = [await start_engine(behave) for _ in range(2)]
    router = await start_router({"m": engines}, watch=WatchTimes(sweep=0.02, late=0.1, stall=STALL_SECONDS))
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=2**16)
    body = b'{"model":"m"}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )

    # Nothing moves for longer than a stall.
    await eventually(lambda: sent and loop.time() > sent[-1] + 2 * STALL_SECONDS)
    assert len(sent) < before + after
    received = bytearray()
    while DONE not in received[-100:]:  # nothing but the last chunk follows
        received += await reader.read(1 << 20)
    writer.close()
    assert received.count(b"data: {") == before + after
    assert sum(len(engine.received) for engine in engines) == 2
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 0
