"""Refusals: errors of an engine that decide whether it gets further requests, and whether another gets this one."""

import asyncio
import json
import logging

import pytest
from resumable_streams import KEEP_ALIVE, Stream, chunk, read, reset

from engine_server.contract.cluster.api import Key
from engine_server.router.requests.outcome import read_seconds
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import BURST
from engine_server.router.routing.retry_budget import MINIMUM, SHARE

EJECTIONS = r"fairlead_router_ejections_total\{.*\}"


def refuse(status, code=None, *, head="", anthropic=False):
    """Return the behavior of an engine that answers every request with an error."""
    detail = {"type": "overloaded_error", "message": "no"} | ({"code": code} if code else {})
    body = json.dumps({"type": "error", "error": detail} if anthropic else {"error": detail}).encode()

    async def behave(engine, request, writer):
        lines = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"HTTP/1.1 {status} No\r\n{lines}\r\n".encode() + body)

    return behave


async def succeed(writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def error_code(response) -> str:
    return (await response.json())["error"]["code"]


class KnownSource:
    """A source of one deployment whose engines know its key, all of them live."""

    synced = True

    def watches(self):
        return ()

    def __init__(self, *engines):
        self.deployment = Deployment(
            Key("default", "m"),
            ("m",),
            tuple(Address.parse(engine.url) for engine in engines),
            vouched=True,
            known_to_engines=True,
        )

    async def run(self, directory):
        self.directory = directory
        directory.put(self.deployment)


async def test_overloaded_replicas_cost_neither_retries_nor_probes_nor_log_lines(
    start_engine, start_router, caplog
):
    full = refuse(503, "queue_full", head="Retry-After: 60\r\n")
    engines = [await start_engine(full) for _ in range(8)]
    router = await start_router({"m": engines})
    clients, requests_each = 24, 21
    probes = sum(engine.probes for engine in engines)
    caplog.clear()

    async def request_repeatedly() -> None:
        for _ in range(requests_each):
            async with router.chat() as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) > 0
                assert await error_code(response) in ("saturated", "queue_full")

    with caplog.at_level(logging.INFO, "engine_server.router"):
        await asyncio.gather(*(request_repeatedly() for _ in range(clients)))

    # Only requests that were sent before the first refusals arrived, and the retries that the budget allows.
    upstream = sum(len(engine.received) for engine in engines)
    assert upstream <= clients + MINIMUM
    assert sum(engine.probes for engine in engines) == probes
    assert not caplog.records
    assert await router.metric(EJECTIONS) == 0


async def test_a_full_replica_gets_the_next_request_once_one_of_its_own_has_ended(
    start_engine, start_router, eventually
):
    may_end = asyncio.Event()
    refuse_full = refuse(503, "queue_full", head="Retry-After: 60\r\n")

    async def behave(engine, request, writer):
        if b"first" in request.body:
            await may_end.wait()
        if may_end.is_set():
            await succeed(writer)
        else:
            await refuse_full(engine, request, writer)

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    first = asyncio.create_task(
        router.session.post(f"{router.url}/v1/completions", json={"model": "m", "user": "first"})
    )
    await eventually(lambda: engine.received)
    for _ in range(3):
        async with router.chat() as response:
            assert response.status == 503
    assert len(engine.received) == 2

    may_end.set()
    async with await first as response:
        assert response.status == 200
    async with router.chat() as response:
        assert response.status == 200


async def test_a_full_replica_gets_the_next_request_after_its_retry_after(
    start_engine, start_router, eventually
):
    refuse_full = refuse(503, "queue_full", head="Retry-After: 0.01\r\n")

    async def behave(engine, request, writer):
        await (succeed(writer) if len(engine.received) > 1 else refuse_full(engine, request, writer))

    router = await start_router({"m": [await start_engine(behave)]})

    async def is_answered() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(is_answered)


async def test_saturated_names_the_time_of_the_replica_that_has_room_first(start_engine, start_router):
    late = await start_engine(refuse(503, "queue_full", head="Retry-After: 40\r\n"))
    soon = await start_engine(refuse(503, "queue_full", head="Retry-After: 9\r\n"))
    router = await start_router({"m": [late, soon]})

    for _ in range(2):
        async with router.chat() as response:
            assert response.status == 503
            assert await error_code(response) == "saturated"
            assert response.headers["Retry-After"] == "9"


async def test_a_full_replica_is_passed_over_for_one_with_room(start_engine, start_router):
    full = await start_engine(refuse(503, "queue_full", head="Retry-After: 60\r\n"))
    roomy = await start_engine()
    router = await start_router({"m": [full, roomy]})

    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == roomy.port

    assert len(full.received) == 1
    assert await router.metric(r'fairlead_router_retries_total\{reason="queue_full"\}') == 1


async def test_a_refusal_leaves_its_connection_usable(start_engine, start_router):
    engine = await start_engine(refuse(500, "internal_error"))
    router = await start_router({"m": [engine]})
    for _ in range(5):
        async with router.chat() as response:
            assert response.status == 500
    assert len(engine.received) == 5 and engine.connections == 1


@pytest.mark.parametrize("anthropic", [False, True])
@pytest.mark.parametrize("code", ["draining", "loading", "engine_dead"])
async def test_ejects_a_replica_that_says_that_it_takes_no_requests(
    start_engine, start_router, code, anthropic
):
    ending, good = await start_engine(refuse(503, code, anthropic=anthropic)), await start_engine()
    router = await start_router({"m": [ending, good]}, policy="round_robin")
    ending.ready = False

    for _ in range(6):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port

    assert len(ending.received) == 1
    assert await router.metric(EJECTIONS) == 1
    assert await router.metric(rf'fairlead_router_retries_total\{{reason="{code}"\}}') == 1


async def test_requests_of_a_replica_that_drains_are_all_retried(start_engine, start_router, eventually):
    """They are more than the budget of retries."""
    may_refuse, requests = asyncio.Event(), 3 * MINIMUM

    async def behave(engine, request, writer):
        await may_refuse.wait()
        await refuse(503, "draining")(engine, request, writer)

    draining, good = await start_engine(behave), await start_engine(ready=False)
    router = await start_router({"m": [draining, good]})

    async def answering_port() -> int:
        async with router.chat() as response:
            return (await response.json())["port"]

    answers = [asyncio.create_task(answering_port()) for _ in range(requests)]
    await eventually(lambda: len(draining.received) == requests)
    good.ready = True

    async def both_live() -> bool:
        return await router.metric(r"fairlead_router_endpoint_live\{.*\}") == 2

    await eventually(both_live)
    may_refuse.set()
    assert await asyncio.gather(*answers) == [good.port] * requests


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "internal_error"), (502, None), (503, "aborted"), (503, "another"), (503, None)],
)
async def test_retries_an_error_on_another_replica(start_engine, start_router, status, code):
    bad, good = await start_engine(refuse(status, code)), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin")
    for _ in range(4):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_value"),
        (404, "model_not_found"),
        (409, "model_mismatch"),
        (429, None),
        (500, "request_failed"),
        (501, None),
        (504, "request_timeout"),
    ],
)
async def test_passes_on_an_error_that_another_replica_would_give_too(
    start_engine, start_router, status, code
):
    engines = [await start_engine(refuse(status, code)) for _ in range(2)]
    router = await start_router({"m": engines})
    async with router.chat() as response:
        assert response.status == status
        assert (await response.json())["error"].get("code") == code
    assert sum(len(engine.received) for engine in engines) == 1


async def test_a_burst_of_errors_ejects_a_replica(start_engine, start_router):
    bad, good = await start_engine(refuse(500, "internal_error")), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin")
    bad.ready = False
    for _ in range(4 * BURST):
        async with router.chat() as response:
            assert response.status == 200
    assert len(bad.received) == BURST
    assert await router.metric(EJECTIONS) == 1


async def test_errors_with_successes_between_them_eject_no_replica(start_engine, start_router):
    refuse_all = refuse(500, "internal_error")

    async def behave(engine, request, writer):
        await (succeed(writer) if len(engine.received) % BURST == 0 else refuse_all(engine, request, writer))

    engines = [await start_engine(behave) for _ in range(2)]
    router = await start_router({"m": engines})
    for _ in range(6 * BURST):
        async with router.chat() as response:
            await response.read()
    assert await router.metric(EJECTIONS) == 0


async def test_replicas_that_all_fail_get_no_more_retries_than_the_budget(start_engine, start_router):
    engines = [await start_engine(refuse(500, "internal_error")) for _ in range(6)]
    router = await start_router({"m": engines})
    requests = 100
    for _ in range(requests):
        async with router.chat() as response:
            assert await error_code(response) == "internal_error"
    upstream = sum(len(engine.received) for engine in engines)
    assert requests + MINIMUM <= upstream <= requests * (1 + SHARE)


async def test_retries_of_one_deployment_leave_the_budget_of_another(start_engine, start_router):
    failing = [await start_engine(refuse(500, "internal_error")) for _ in range(6)]
    bad, good = await start_engine(refuse(500, "internal_error")), await start_engine()
    router = await start_router({"failing": failing, "m": [bad, good]}, policy="round_robin")
    for _ in range(3 * MINIMUM):
        async with router.chat("failing") as response:
            assert await error_code(response) == "internal_error"

    for _ in range(BURST):
        async with router.chat("m") as response:
            assert (await response.json())["port"] == good.port

    assert bad.received


async def test_counts_choices_of_a_ring_only_for_requests_that_are_sent(start_engine, start_router):
    """More retries are wanted than the budget has."""
    engines = [await start_engine(refuse(500, "internal_error")) for _ in range(8)]
    router = await start_router({"m": engines}, policy="prefix")
    for number in range(5 * MINIMUM):
        async with router.chat(prompt=f"prompt {number}") as response:
            assert response.status == 500

    upstream = sum(len(engine.received) for engine in engines)
    assert await router.metric(r"fairlead_router_ring_picks_total\{.*\}") == upstream


async def test_retries_when_an_error_breaks_off(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    bad, good = await start_engine(behave), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin")
    for _ in range(4):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received


async def test_names_the_deployment_to_engines_that_know_it(start_engine, start_router):
    engine = await start_engine()
    router = await start_router(sources=[KnownSource(engine)])
    async with router.chat() as response:
        assert response.status == 200
    (request,) = engine.received
    assert request.header("Fairlead-Deployment") == "default/m"


async def test_a_replica_of_another_deployment_is_out_until_it_is_listed_again(
    start_engine, start_router, eventually
):
    foreign = await start_engine(refuse(404, "model_not_found", head="Fairlead-Model: abc\r\n"))
    own = await start_engine()
    source = KnownSource(foreign, own)
    router = await start_router(sources=[source], policy="round_robin")
    for _ in range(6):
        async with router.chat() as response:
            assert (await response.json())["port"] == own.port
    assert len(foreign.received) == 1 and foreign.probes == 0

    source.directory.remove(source.deployment.key)
    source.directory.put(source.deployment)

    async def is_used_again() -> bool:
        async with router.chat() as response:
            assert response.status == 200
        return len(foreign.received) == 2

    await eventually(is_used_again)


async def test_a_replica_of_another_make_stays_in_use_after_an_unknown_model(start_engine, start_router):
    engine = await start_engine(refuse(404, "model_not_found"))
    router = await start_router(sources=[KnownSource(engine)])
    for _ in range(2):
        async with router.chat() as response:
            assert response.status == 404
    assert len(engine.received) == 2


@pytest.mark.parametrize(
    "field", [None, b"", b"soon", b"-1", b"nan", b"inf", b"Wed, 21 Oct 2026 07:28:00 GMT"]
)
def test_a_retry_after_that_is_no_number_of_seconds_means_one(field):
    assert read_seconds(field) == 1.0


@pytest.mark.parametrize(
    ("field", "seconds"), [(b"0", 0.05), (b"0.05", 0.05), (b"7", 7.0), (b"60", 60.0), (b"1e308", 60.0)]
)
def test_a_retry_after_has_bounds(field, seconds):
    assert read_seconds(field) == seconds


async def comment_and_reset(engine, request, writer, number):
    chunk(writer, KEEP_ALIVE)
    await reset(engine, request, writer, number)


async def test_a_refusal_without_end_after_the_head_of_a_stream_is_broken_off(start_engine, start_router):
    started = asyncio.Event()

    async def behave(engine, request, writer):
        if not started.is_set():
            started.set()
            await Stream(0, failure=comment_and_reset)(engine, request, writer)
            return
        writer.write(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    router = await start_router({"m": [await start_engine(behave) for _ in range(4)]})
    body = await read(router)
    assert body.startswith(KEEP_ALIVE + b'data: {"error":')
