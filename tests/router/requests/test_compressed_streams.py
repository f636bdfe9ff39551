"""Streams of events that an engine of another make, or a proxy before it, compresses."""

import asyncio
import gzip
import json
import random
import zlib

import aiohttp
import pytest
from resumable_streams import chunk, reset

from engine_server.router.requests.hold.hold import HoldSettings

COMMENT = b": keep-alive\n\n"
EVENTS = [b'data: {"n": %d}\n\n' % number for number in range(20)]
DONE = b"data: [DONE]\n\n"
ASKING = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


def head(encoding: str) -> bytes:
    line = f"Content-Encoding: {encoding}\r\n" if encoding else ""
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{line}Transfer-Encoding: chunked\r\n\r\n".encode()


def compressed(encoding: str) -> list[bytes]:
    """Return the bytes of each event. Those of br are any bytes: the router doesn't read them."""
    if encoding == "br":
        return [random.Random(number).randbytes(30) for number in range(len(EVENTS))]
    encoder = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    return [encoder.compress(event) + encoder.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS]


class Compressing:
    """Sends its events compressed, each once the client has the one before."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.pieces = compressed(encoding)
        self.read = asyncio.Semaphore(1)

    async def __call__(self, engine, request, writer):
        writer.write(head(self.encoding))
        for piece in self.pieces:
            await self.read.acquire()
            chunk(writer, piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n")


async def gzips_always(engine, request, writer):
    writer.write(head("gzip"))
    chunk(writer, b"".join(compressed("gzip")))
    writer.write(b"0\r\n\r\n")


async def gzips_if_accepted(engine, request, writer):
    encoding = "gzip" if "gzip" in (request.header("Accept-Encoding") or "") else ""
    writer.write(head(encoding))
    chunk(writer, b"".join(compressed("gzip") if encoding else [*EVENTS, DONE]))
    writer.write(b"0\r\n\r\n")


async def breaks_in_gzip(engine, request, writer):
    writer.write(head("gzip"))
    chunk(writer, compressed("gzip")[0])
    await reset(engine, request, writer, 0)


async def refuses_in_gzip(engine, request, writer):
    body = gzip.compress(b'{"error": {"message": "no such model"}}')
    writer.write(
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_each_event_is_at_the_client_before_the_next_is_made(start_engine, start_router, encoding):
    engine = Compressing(encoding)
    router = await start_router({"m": [await start_engine(engine)]})
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url, body = f"{router.url}/v1/chat/completions", {"model": "m", **ASKING}
        async with session.post(url, json=body) as answer:
            assert answer.headers["Content-Encoding"] == encoding
            assert answer.headers.getall("X-Accel-Buffering") == ["no"]
            assert answer.headers.getall("Cache-Control") == ["no-cache"]
            for piece in engine.pieces:
                assert await answer.content.readexactly(len(piece)) == piece
                engine.read.release()
            assert await answer.read() == b""
    assert await router.metric("fairlead_router_interrupted_total") == 0


async def test_large_pieces_without_an_empty_line_pass(start_engine, start_router):
    piece = bytes(range(33, 127)) * 100_000

    async def behave(engine, request, writer):
        writer.write(head("br"))
        chunk(writer, piece)
        writer.write(b"0\r\n\r\n")

    router = await start_router({"m": [await start_engine(behave)]})
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        url, body = f"{router.url}/v1/chat/completions", {"model": "m", **ASKING}
        async with session.post(url, json=body) as answer:
            assert await answer.read() == piece


async def test_broken_stream_is_cut_and_not_ended_in_plain_text(start_engine, start_router):
    engines = [await start_engine(breaks_in_gzip) for _ in range(2)]
    router = await start_router({"m": engines})
    async with router.chat(**ASKING) as answer:
        assert await answer.content.readexactly(len(EVENTS[0])) == EVENTS[0]
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert sum(len(engine.received) for engine in engines) == 1
    assert await router.metric("fairlead_router_interrupted_total") == 1


async def test_refusal_keeps_its_encoding(start_engine, start_router):
    router = await start_router({"m": [await start_engine(refuses_in_gzip)]})
    async with router.chat(**ASKING) as answer:
        assert (answer.status, answer.headers["Content-Encoding"]) == (404, "gzip")
        assert json.loads(await answer.read())["error"]["message"] == "no such model"


@pytest.fixture
async def waiting(start_scaled, scale):
    """A stream that waits for a replica, and has its head."""
    router = await start_scaled(HoldSettings(comment_seconds=0.01))
    async with router.chat(**ASKING) as answer:
        assert "Content-Encoding" not in answer.headers
        assert await answer.content.readexactly(len(COMMENT)) == COMMENT
        yield answer


async def test_engine_of_a_stream_that_waited_is_asked_for_plain_events(start_engine, scale, waiting):
    engine = await start_engine(gzips_if_accepted)
    scale.set(engine)
    assert (await waiting.read()).replace(COMMENT, b"") == b"".join(EVENTS) + DONE
    accepted = [value for name, value in engine.received[0].headers if name.lower() == "accept-encoding"]
    assert accepted == ["identity"]


async def test_another_engine_is_tried_if_one_compresses_all_the_same(start_engine, scale, waiting):
    engines = [await start_engine(gzips_always), await start_engine(gzips_if_accepted)]
    scale.set(*engines)
    assert (await waiting.read()).replace(COMMENT, b"") == b"".join(EVENTS) + DONE


async def test_stream_ends_with_an_error_if_all_engines_compress(start_engine, scale, waiting):
    engines = [await start_engine(gzips_always) for _ in range(2)]
    scale.set(*engines)
    event, done = (await waiting.read()).replace(COMMENT, b"").split(b"\n\n", 1)
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], done) == ("no_answer", DONE)
    assert "compress" in error["message"]
    assert [len(engine.received) for engine in engines] == [1, 1]
