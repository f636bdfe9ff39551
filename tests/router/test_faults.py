"""What the router does when engines, clients or requests go wrong."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys

import pytest

from engine_server.router import server
from engine_server.router.downstream import Limits

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


async def slam(engine, request, writer):
    writer.transport.abort()


async def unavailable(engine, request, writer):
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
    await writer.drain()
    writer.close()


# Another replica answers


async def test_a_replica_that_is_gone_is_left_out_and_comes_back(start_engine, start_router, eventually):
    one, two = await start_engine(), await start_engine()
    router = await start_router({"m": [one, two]})
    await one.stop()
    for _ in range(20):
        async with router.chat() as response:
            assert (await response.json())["port"] == two.port
    assert await router.metric("fairlead_router_ejections_total") == 1
    assert await router.metric(r'fairlead_router_retries_total\{reason="unreachable"\}') == 1
    await one.start()

    async def used_again() -> bool:
        async with router.chat() as response:
            return (await response.json())["port"] == one.port

    await eventually(used_again)


async def test_a_connection_closed_before_a_byte_is_tried_elsewhere(start_engine, start_router):
    bad, good = await start_engine(slam), await start_engine()
    router = await start_router({"m": [bad, good]})
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert bad.received
    assert await router.metric("fairlead_router_in_flight") == 0


async def test_a_503_is_tried_elsewhere(start_engine, start_router):
    bad, good = await start_engine(unavailable, ready=True), await start_engine()
    router = await start_router({"m": [bad, good]})
    bad.ready = False
    for _ in range(10):
        async with router.chat() as response:
            assert (await response.json())["port"] == good.port
    assert len(bad.received) == 1


async def test_the_last_replicas_own_503_reaches_the_client(start_engine, start_router):
    router = await start_router({"m": [await start_engine(unavailable)]})
    async with router.chat() as response:
        assert (response.status, await response.read()) == (503, b"busy")


async def test_a_kept_connection_that_the_engine_closed_is_made_good(start_engine, start_router):
    """The engine answers, keeps the connection, and closes it as the next request arrives."""

    async def behave(engine, request, writer):
        served = getattr(writer, "served", 0)
        writer.served = served + 1
        if served:
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    for _ in range(10):
        async with router.chat() as response:
            assert response.status == 200
    assert engine.connections == 10


async def test_a_request_that_engines_die_of_does_not_visit_them_all(start_engine, start_router):
    engines = [await start_engine(slam) for _ in range(8)]
    router = await start_router({"m": engines})
    async with router.chat() as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "no_answer"
    assert sum(len(engine.received) for engine in engines) == 3


async def test_nor_where_connections_were_kept_and_the_engines_really_die(start_engine, start_router):
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


async def test_an_engine_that_does_not_speak_http(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert response.status == 503


# No retry once the client has a byte


async def test_a_stream_that_breaks_ends_with_an_error_event(start_engine, start_router):
    async def behave(engine, request, writer):
        event = b'data: {"n": 1}\n\ndata: {"n'
        writer.write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.transport.abort()

    one, two = await start_engine(behave), await start_engine(behave)
    router = await start_router({"m": [one, two]})
    async with router.chat(stream=True) as response:
        events = (await response.read()).decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events[:1]] == [{"n": 1}]
    error = json.loads(events[1].removeprefix("data: "))["error"]
    assert error["code"] == "interrupted" and set(error) == {"message", "type", "param", "code"}
    assert events[2:] == [""]
    assert len(one.received) + len(two.received) == 1
    assert await router.metric("fairlead_router_interrupted_total") == 1
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_whole_answer_that_breaks_is_seen_to_be_broken(start_engine, start_router, framing):
    async def behave(engine, request, writer):
        body = b"5\r\nhello\r\n" if b"chunked" in framing else b"hello"
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (framing, body))
        await writer.drain()
        writer.transport.abort()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    said = await router.raw(post(b'{"model":"m"}'))
    assert said.startswith(b"HTTP/1.1 200") and b"hello" in said and not said.endswith(b"0\r\n\r\n")
    assert len(engine.received) == 1


# Requests that cannot be served


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"model":"m"', None, "not JSON"),
        (b"", None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[1]", "model", "object"),
        (b"{}", "model", "model"),
        (b'{"model":7}', "model", "str"),
        (b'{"model":null}', "model", "str"),
    ],
)
async def test_bad_bodies(start_engine, start_router, body, param, words):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    async with router.session.post(f"{router.url}/v1/completions", data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param and words in error["message"]
    assert not engine.received


async def test_an_unknown_model_is_told_the_known_names(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"alpha": [engine], "beta": [engine]})
    async with router.chat("gamma") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "'gamma'" in error["message"] and "alpha, beta" in error["message"]


async def test_no_replica_is_503_with_retry_after(start_engine, start_router):
    router = await start_router({"m": [await start_engine(ready=False)]})
    async with router.chat() as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "no_replica"


async def test_an_endpoint_is_used_once_it_says_that_it_is_ready(start_engine, start_router, eventually):
    engine = await start_engine(ready=False)
    router = await start_router({"m": [engine]})
    await eventually(lambda: engine.probes > 1)
    assert not engine.received
    engine.ready = True

    async def answered() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answered)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("HEAD", "/nope", 404, None),
        ("POST", "/", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("HEAD", "/health", 200, None),
    ],
)
async def test_paths_and_methods(start_router, method, path, status, allow):
    router = await start_router()
    for _ in range(2):  # the connection goes on being good
        async with router.session.request(method, router.url + path) as response:
            assert response.status == status
            assert response.headers.get("Allow") == allow
            body = await response.read()
    assert (body == b"") == (method == "HEAD")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(start_engine, start_router, declared):
    engine = await start_engine()
    router = await start_router({"m": [engine]}, limits=Limits(body=1000))
    exactly = b'{"model":"m","prompt":"%b"}' % (b"x" * 975)
    assert len(exactly) == 1000

    async def pieces(data):
        yield data

    async with router.session.post(
        f"{router.url}/v1/x", data=exactly if declared else pieces(exactly)
    ) as response:
        assert response.status == 200
    over = exactly + b" "
    async with router.session.post(f"{router.url}/v1/x", data=over if declared else pieces(over)) as response:
        assert response.status == 413
        assert "1000" in (await response.json())["error"]["message"]
        assert response.headers["Connection"] == "close"
    assert len(engine.received) == 1


async def test_a_client_reads_why_although_it_is_still_sending(start_router):
    router = await start_router(limits=Limits(body=1000))
    reader, writer = await router.connect()
    writer.write(b"POST /v1/x HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    "line", [b"X: " + b"x" * 600_000, b"X: x\r\n" * 100_000], ids=["one line", "many lines"]
)
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["ended", "open"])
async def test_a_head_over_the_limit(start_router, line, end):
    router = await start_router()
    said = await router.raw(b"POST /v1/x HTTP/1.1\r\n" + line + end)
    assert said.startswith(b"HTTP/1.1 431") and b"65536" in said


async def test_a_head_over_the_limit_that_comes_at_once(start_router):
    router = await start_router(limits=Limits(head=1000))
    said = await router.raw(b"POST /v1/x HTTP/1.1\r\nX: " + b"x" * 1000 + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    ],
    ids=["tls", "two framings", "two lengths", "bad chunk", "connect"],
)
async def test_what_is_not_a_request(start_router, said):
    router = await start_router()
    answer = await router.raw(said)
    assert answer.startswith(b"HTTP/1.1 400") and b"Connection: close" in answer
    json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_answers_under_way_come_before_a_refusal(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    said = await router.raw(post(b'{"model":"m"}') + b"nonsense\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"400"]


# Leaving


async def start_process(*flags: str) -> tuple[asyncio.subprocess.Process, str]:
    command = [
        sys.executable,
        "-m",
        "engine_server.cli",
        "router",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        *flags,
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    async for line in process.stderr:
        if b"listening on " in line:
            return process, line.decode().split("listening on ")[1].strip()
    raise AssertionError("it did not start")


@pytest.fixture
async def process(start_engine, eventually):
    """A real router process in front of an engine whose answer can be held; (process, URL, engine, release)."""
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    child, url = await start_process("--endpoint", f"m={engine.url}", "--drain-timeout", "30")
    await eventually(lambda: engine.probes)
    yield child, url, engine, release
    if child.returncode is None:
        child.kill()
    await child.wait()


async def test_sigterm_finishes_what_is_under_way(process, eventually, session):
    child, url, engine, release = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGTERM)

    async def draining() -> bool:
        async with session.get(f"{url}/ready") as response:
            return response.status == 503 and (await response.json()) == {"status": "draining"}

    await eventually(draining)
    late = asyncio.create_task(send(session, url))
    await eventually(lambda: len(engine.received) == 2)  # for a while, new ones are still taken

    async def refused() -> bool:
        try:
            async with session.get(f"{url}/health"):
                return False
        except OSError:
            return True

    await eventually(refused)
    assert child.returncode is None
    release.set()
    assert await pending == await late == (200, "close")
    assert await asyncio.wait_for(child.wait(), 20) == 0


async def test_a_second_signal_does_not_wait(process, eventually, session):
    child, url, engine, _ = process
    pending = await send_until_it_arrives(session, url, engine, eventually)
    os.kill(child.pid, signal.SIGINT)

    async def closed() -> bool:
        return b"draining" in await child.stderr.readline()

    await eventually(closed)
    os.kill(child.pid, signal.SIGINT)
    assert await asyncio.wait_for(child.wait(), 20) == 0
    assert isinstance((await asyncio.gather(pending, return_exceptions=True))[0], OSError | Exception)


async def send(session, url) -> tuple[int, str | None]:
    async with session.post(f"{url}/v1/completions", json={"model": "m"}) as response:
        await response.read()
        return response.status, response.headers.get("Connection")


async def send_until_it_arrives(session, url, engine, eventually) -> asyncio.Task:
    async def let_in() -> bool:
        async with session.get(f"{url}/metrics") as response:
            return (
                'endpoint_live{deployment="m"' in (text := await response.text())
                and "} 1.0" in text.split("endpoint_live{")[1]
            )

    await eventually(let_in)
    task = asyncio.create_task(send(session, url))
    await eventually(lambda: engine.received)
    return task


async def test_quiet_connections_are_closed_and_busy_ones_are_not(start_engine, start_router, monkeypatch):
    monkeypatch.setattr(server, "SWEEP", 0.02)
    monkeypatch.setattr(server, "QUIET_LIMIT", 0.1)
    release = asyncio.Event()

    async def behave(engine, request, writer):
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    router = await start_router({"m": [await start_engine(behave)]})
    busy, busy_writer = await router.connect()
    busy_writer.write(post(b'{"model":"m"}'))
    for said in (b"", b"POST /v1/completions HTTP/1.1\r\nContent-Le"):
        reader, writer = await router.connect()
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    release.set()
    assert (await busy.readline()).startswith(b"HTTP/1.1 200")
    busy_writer.close()
