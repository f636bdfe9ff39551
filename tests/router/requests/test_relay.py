"""Relaying an answer: its head, its body, and streams of events."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.exchange import Exchange
from engine_server.router.http.forwarded_fields import ANSWER_FIELDS
from engine_server.router.http.wire import Fields, Request
from engine_server.router.metrics import Metrics
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.relay import Relay

POST = b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def sse(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


async def test_forwards_an_answer_with_the_listed_fields_alone(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 201 Made It\r\nContent-Type: text/x\r\nVary: a\r\nVary: b\r\nOpenAI-Version: 1\r\n"
            b"Set-Cookie: a=1\r\nX-Accel-Redirect: /secret\r\nAlt-Svc: h3\r\nClear-Site-Data: *\r\nX-Custom: 1\r\n"
            b"Fairlead-Load: running=1\r\nKeep-Alive: timeout=5\r\nRequest-Id: 1\r\n"
            b"Connection: keep-alive, Request-Id\r\nContent-Length: 4\r\n\r\n\x00\xffab"
        )

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat() as response:
        assert (response.status, response.reason) == (201, "Made It")
        assert await response.read() == b"\x00\xffab"
        assert response.headers.getall("Vary") == ["a", "b"]
        names = {name.lower() for name in response.headers}
        assert names == {"content-type", "vary", "openai-version", "content-length", "x-request-id"}


async def test_forwards_further_fields_in_both_directions(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nX-Team-Cost: 1\r\nX-Cost: 2\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, forwarded_fields=[b"x-team-*"])
    headers = {"X-Team-Name": "a", "X-Name": "b"}
    async with router.session.post(
        f"{router.url}/v1/completions", json={"model": "m"}, headers=headers
    ) as got:
        assert got.headers["X-Team-Cost"] == "1" and "X-Cost" not in got.headers
    (received,) = engine.received
    assert received.header("X-Team-Name") == "a" and received.header("X-Name") is None


async def test_forwards_a_request_with_the_listed_fields_alone(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    body = b'{"messages": [], "unknown": {"model": "other"}, "model" : "m"}'
    headers = {
        "Authorization": "Bearer sk-1",
        "X-Request-Id": "7",
        "Fairlead-Report-Tokens": "0",
        "Fairlead-Resume": "1",
        "TE": "trailers",
        "Content-Type": "application/json",
        "Connection": "keep-alive, B3",
        "B3": "1",
        "Cookie": "sso=1",
        "X-Forwarded-For": "192.0.2.1",
    }
    async with router.session.post(f"{router.url}/v1/embeddings?a=b", data=body, headers=headers) as response:
        assert response.status == 200
    (got,) = engine.received
    assert (got.method, got.path, got.body) == ("POST", "/v1/embeddings?a=b", body)
    assert got.header("Authorization") == "Bearer sk-1"
    assert got.header("X-Request-Id") == "7"
    assert got.header("Host") == f"127.0.0.1:{router.port}"
    assert [value for name, value in got.headers if name.lower() == "fairlead-report-tokens"] == ["1"]
    assert not any(
        got.header(name)
        for name in ("Fairlead-Resume", "TE", "Connection", "B3", "Cookie", "X-Forwarded-For")
    )


async def test_forwards_each_chunk_of_a_stream_as_it_arrives(start_engine, start_router):
    """The engine sends its second chunk only once the client has the first."""
    client_has_first = asyncio.Event()

    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD + sse("one"))
        await client_has_first.wait()
        writer.write(sse("two") + b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b"data: one\n\n"
        client_has_first.set()
        assert await response.content.read() == b"data: two\n\n"


@pytest.mark.parametrize(
    "pieces", [[b"data: a\n", b"\ndata: b\n\n"], [b"data: a\r\n\r\nda", b"ta: b\r\n\r\n"], [b"data: tail"]]
)
async def test_forwards_events_whole_wherever_the_engine_splits_them(start_engine, start_router, pieces):
    async def behave(engine, request, writer):
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat(stream=True) as response:
        assert await response.read() == b"".join(pieces)


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
    assert events[2:] == ["data: [DONE]", ""]
    assert len(one.received) + len(two.received) == 1
    assert await router.metric("fairlead_router_interrupted_total") == 1
    assert await router.metric(r"fairlead_router_endpoint_in_flight\{.*\}") == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_an_answer_that_breaks_is_incomplete_at_the_client(start_engine, start_router, framing):
    async def behave(engine, request, writer):
        body = b"5\r\nhello\r\n" if b"chunked" in framing else b"hello"
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (framing, body))
        await writer.drain()
        writer.transport.abort()

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    said = await router.raw(POST)
    assert said.startswith(b"HTTP/1.1 200") and b"hello" in said and not said.endswith(b"0\r\n\r\n")
    assert len(engine.received) == 1


class RecordingClient:
    """Records each write of a relay."""

    def __init__(self) -> None:
        self.closing = False
        self.writes: list[bytes] = []
        self.write = self.writes.append


@given(
    st.lists(st.sampled_from([b"data: a\n\n", b": note\r\n\r\n", b"id: 1\ndata: b\n\n"]), max_size=6),
    st.data(),
)
def test_every_write_of_a_stream_ends_with_a_whole_event(events, data):
    body = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    client = RecordingClient()
    http10 = Request(
        b"POST", b"/v1/completions", b"", {}, bytearray(), http11=False, last=True, id=b"id"
    )  # its body is not chunked
    relay = Relay(Exchange(client, http10), Lifecycle(Metrics(), http10))
    fields = Fields(ANSWER_FIELDS)
    fields.add(b"Content-Type", b"text/event-stream")

    relay.on_head(200, b"OK", fields)
    relay.flush()
    for piece in pieces:
        relay.on_body(piece)
        relay.flush()
    relay.on_end()
    relay.flush()

    head, *writes = client.writes
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"".join(writes) == body
    assert all(write.endswith((b"\n\n", b"\r\n\r\n")) for write in writes)
    assert relay.outcome == "finished"


async def test_a_stream_keeps_its_engines_fields_for_proxies(start_engine, start_router):
    async def behave(engine, request, writer):
        own = b"X-Accel-Buffering: yes\r\nCache-Control: no-store\r\n"
        head, end = STREAM_HEAD.removesuffix(b"\r\n"), b"data: [DONE]\n\n"
        writer.write(head + own + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))

    router = await start_router({"m": [await start_engine(behave)]})
    async with router.chat(stream=True) as response:
        assert await response.read() == b"data: [DONE]\n\n"
    assert response.headers.getall("X-Accel-Buffering") == ["yes"]
    assert response.headers.getall("Cache-Control") == ["no-store"]
