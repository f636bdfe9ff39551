"""Attempts: failures of an engine that lead to another replica, and requests that end without an answer."""

import asyncio
import contextlib
import socket
from time import perf_counter

import pytest
from waiting import PATIENCE

from engine_server.contract.cluster.api import Key
from engine_server.router.http import upstream
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


async def reset(engine, request, writer):
    writer.transport.abort()


async def unavailable(engine, request, writer):
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
    await writer.drain()
    writer.close()


class FixedSource:
    """A source of one endpoint that takes requests without a probe."""

    synced = True

    def __init__(self, *address):
        self.deployment = Deployment(Key("default", "m"), ("m",), (Address(*address),), vouched=True)

    def watches(self):
        return ()

    async def run(self, directory):
        directory.put(self.deployment)


async def test_retries_on_another_replica_when_connection_is_refused_until_it_is_ready_again(
    start_engine, start_router, eventually
):
    one, two = await start_engine(), await start_engine()
    router = await start_router({"m": [one, two]})
    await one.stop()
    for _ in range(20):
        async with router.chat() as response:
            assert (await response.json())["port"] == two.port
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 1
    assert await router.metric(r'fairlead_router_retries_total\{reason="unreachable"\}') == 1
    await one.start()

    async def used_again() -> bool:
        async with router.chat() as response:
            return (await response.json())["port"] == one.port

    await eventually(used_again)


async def test_retries_on_another_replica_when_the_connection_closes_before_an_answer(
    start_engine, start_router
):
    bad, good = await start_engine(reset), await start_engine()
    router = await start_router({"m": [bad, good]})
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received
    assert await router.metric("fairlead_router_in_flight") == 0


async def test_retries_on_another_replica_when_the_engine_answers_503(start_engine, start_router):
    bad, good = await start_engine(unavailable, ready=True), await start_engine()
    router = await start_router({"m": [bad, good]})
    bad.ready = False
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert len(bad.received) == 1


async def test_answers_the_503_of_the_last_replica_in_its_own_words(start_engine, start_router, caplog):
    router = await start_router({"m": [await start_engine(unavailable)]})
    async with router.chat() as response:
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "No replica of 'm' is ready"
    assert "got no_replica: 'busy'" in caplog.text


async def test_counts_a_retry_only_when_another_replica_gets_the_request(start_engine, start_router):
    router = await start_router({"m": [await start_engine(reset)]})

    async with router.chat() as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_replica"

    assert await router.metric(r"fairlead_router_retries_total\{.*\}") == 0


async def test_gives_up_after_three_engines_without_an_answer(start_engine, start_router):
    """The request may be the cause, so clients are asked not to send it again."""
    engines = [await start_engine(reset) for _ in range(8)]
    router = await start_router({"m": engines})
    async with router.chat() as response:
        assert response.status == 502
        assert response.headers["x-should-retry"] == "false"
        assert (await response.json())["error"]["code"] == "no_answer"
    assert sum(len(engine.received) for engine in engines) == 3


async def test_gives_up_after_three_engines_that_refuse_a_connection(start_engine, start_router):
    engines = [await start_engine() for _ in range(5)]
    router = await start_router({"m": engines})
    for engine in engines:
        await engine.stop()
    async with router.chat() as response:
        assert response.status == 503
        assert "x-should-retry" not in response.headers
        assert (await response.json())["error"]["code"] == "no_replica"
    assert await router.metric(r"fairlead_router_ejections_total\{.*\}") == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 200 O",
        b"",
    ],
)
async def test_retries_on_another_replica_when_an_answer_has_no_valid_head(
    start_engine, start_router, answer
):
    async def behave(engine, request, writer):
        writer.write(answer)
        await writer.drain()
        writer.close()

    bad, good = await start_engine(behave), await start_engine()
    router = await start_router({"m": [bad, good]}, policy="round_robin")
    for _ in range(4):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received


async def test_gives_up_after_three_engines_that_exit_with_kept_connections(start_engine, start_router):
    async def behave(engine, request, writer):
        if b"poison" in request.body:
            await engine.stop()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engines = [await start_engine(behave) for _ in range(6)]
    router = await start_router({"m": engines}, policy="round_robin")
    for _ in engines:
        async with router.chat() as response:
            assert response.status == 200
    async with router.chat(prompt="poison") as response:
        assert response.status == 502
    assert sum(engine.server is None for engine in engines) == 3
    async with router.chat() as response:
        assert response.status == 200


async def test_answers_503_when_the_only_engine_does_not_speak_http(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 503


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"model":"m"', None, "not JSON"),
        (b"", None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[1]", None, "object"),
        (b"{}", "model", "model"),
        (b'{"model":7}', "model", "str"),
        (b'{"model":null}', "model", "str"),
    ],
)
async def test_refuses_a_body_that_names_no_model(start_engine, start_router, body, param, words):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    async with router.session.post(f"{router.url}/v1/completions", data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param and words in error["message"]
    assert not engine.received


async def test_error_for_an_unknown_model_lists_the_known_names(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"alpha": [engine], "beta": [engine]})
    async with router.chat("gamma") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "'gamma'" in error["message"] and "alpha, beta" in error["message"]


async def test_answers_503_with_retry_after_when_no_replica_is_ready(start_engine, start_router):
    router = await start_router({"m": [await start_engine(ready=False)]})
    async with router.chat() as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "no_replica"


async def test_closes_the_engine_connection_when_the_client_leaves_in_mid_stream(
    start_engine, start_router, eventually
):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one"))
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    response = await router.chat(stream=True)
    await response.content.readuntil(b"\n\n")
    assert await router.metric("fairlead_router_in_flight") == 1
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 1
    response.close()
    await asyncio.wait_for(engine.hung_up.wait(), PATIENCE)

    async def nothing_in_flight() -> bool:
        total = await router.metric("fairlead_router_in_flight")
        return total + await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0

    await eventually(nothing_in_flight)


async def test_closes_the_engine_connection_when_the_client_leaves_before_the_answer(
    start_engine, start_router, eventually
):
    async def behave(engine, request, writer):
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    _, writer = await router.connect()
    writer.write(
        b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    await eventually(lambda: engine.received)
    writer.close()
    await asyncio.wait_for(engine.hung_up.wait(), PATIENCE)

    async def counted() -> bool:
        return await router.metric(r'fairlead_router_requests_total\{code="499",model="default/m"\}') == 1

    await eventually(counted)
    assert await router.metric("fairlead_router_in_flight") == 0


@pytest.fixture
def unanswered_port():
    """Return a port at which a connect gets no answer, since the backlog is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


async def test_a_connect_without_an_answer_does_not_eject_the_last_replica(
    start_router, unanswered_port, monkeypatch
):
    """The cause may be the router's own."""
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_SECONDS", 0.01)
    router = await start_router(sources=[FixedSource("127.0.0.1", unanswered_port)])
    async with router.chat() as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_replica"
    assert await router.metric(r"fairlead_router_endpoint_live\{.*\}") == 1


@pytest.mark.more
async def test_a_router_without_cpu_while_it_connects_reaches_its_only_replica(
    start_engine, start_router, monkeypatch
):
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_SECONDS", 0.05)
    router = await start_router({"m": [await start_engine()]})
    sent = asyncio.create_task(router.chat().__aenter__())

    while not sent.done():
        resumed = perf_counter() + 0.1
        while perf_counter() < resumed:
            pass
        await asyncio.sleep(0)

    response = await sent
    assert response.status == 200
    response.release()


async def test_a_held_request_ends_after_three_connects_without_an_answer(
    start_router, unanswered_port, monkeypatch
):
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_SECONDS", 0.01)
    source = FixedSource("127.0.0.1", unanswered_port)
    router = await start_router(sources=[source], hold=HoldSettings())
    async with router.chat() as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_replica"


async def test_counts_down_when_the_client_leaves_during_a_connect(
    start_router, eventually, unanswered_port, monkeypatch
):
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_SECONDS", 60.0)
    router = await start_router(sources=[FixedSource("127.0.0.1", unanswered_port)])
    _, writer = await router.connect()
    writer.write(POST)
    in_flight = r"fairlead_router_endpoint_in_flight\{.*\}"

    async def in_flight_at_endpoint() -> bool:
        return await router.metric(in_flight) == 1

    await eventually(in_flight_at_endpoint)
    writer.close()

    async def counted() -> bool:
        return await router.metric(r'fairlead_router_requests_total\{code="499",model="default/m"\}') == 1

    await eventually(counted)
    assert await router.metric(in_flight) == 0
