"""Requests and answers of 200 MB: a router keeps no more of them than its bound, whichever part is endless."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil
import pytest
from router_process import start_process

MEBIBYTE = 1 << 20
SIZE = 200_000_000
PIECE = b"x" * 65_536
FIELDS = b"X-Padding: %b\r\n" % (b"x" * 1000) * 64
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
# For buffers of sockets, and what the allocator keeps.
MARGIN = 16 * MEBIBYTE
BODY_LIMIT = 32 * MEBIBYTE
EVENT_LIMIT = 4 * MEBIBYTE
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASK = POST + b'Content-Length: 27\r\n\r\n{"model":"m","stream":true}'
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
# The beginning, what is repeated, and how much the router may keep.
REQUESTS = {
    "a target": (b"POST /v1/", PIECE, 0),
    "a field": (POST + b"X-Padding: ", PIECE, 0),
    "fields": (POST, FIELDS, 0),
    "a declared body": (POST + b"Content-Length: %d\r\n\r\n" % SIZE, PIECE, 0),
    "a chunked body": (POST + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, BODY_LIMIT),
    "a chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", PIECE, 0),
    "trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", FIELDS, 0),
}
ANSWERS = {
    "a reason": (b"HTTP/1.1 200 ", PIECE, 0),
    "a field": (OK + b"X-Padding: ", PIECE, 0),
    "fields": (OK, FIELDS, 0),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000, 0),
    "a refusal": (b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % SIZE, PIECE, 0),
    "an event": (OK + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, EVENT_LIMIT),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n:\r\n0\r\n", FIELDS, 0),
    "an answer that nobody reads": (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE, PIECE, 0),
}


class Peak:
    """The largest resident memory of a process, beyond what it has first."""

    def __init__(self, process: psutil.Process) -> None:
        self.size = 0
        self._process = process
        self._before = process.memory_info().rss

    def measure(self) -> None:
        self.size = max(self.size, self._process.memory_info().rss - self._before)

    async def send(self, writer: asyncio.StreamWriter, begin: bytes, piece: bytes) -> None:
        """Send 200 MB, or what the other side takes, and measure after each piece."""
        with suppress(ConnectionError):
            writer.write(begin)
            for _ in range(SIZE // len(piece)):
                writer.write(piece)
                await writer.drain()
                self.measure()


@asynccontextmanager
async def engine(answer) -> AsyncIterator[str]:
    """Serve an engine that is ready and answers each POST by `answer`, with the writer; yield its URL."""

    async def serve(reader, writer) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /ready"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                await answer(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def router(url: str, eventually, session) -> AsyncIterator[tuple[psutil.Process, int]]:
    """Run a router that has found the engine ready; yield the process and its port."""
    child, address, metrics = await start_process(f"--endpoint=m={url}", "--hold-seconds=0")

    async def is_live() -> bool:
        async with session.get(metrics) as response:
            return (
                re.search(r"^fairlead_router_endpoint_live\{.*\} 1", await response.text(), re.M) is not None
            )

    try:
        await eventually(is_live)
        yield psutil.Process(child.pid), int(address.rsplit(":", 1)[1])
    finally:
        child.kill()
        await child.wait()


async def small_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.thorough
@pytest.mark.parametrize("part", REQUESTS)
async def test_a_request_of_200_mb_takes_no_more_memory_than_its_bound(part, session, eventually):
    begin, piece, bound = REQUESTS[part]
    async with engine(small_answer) as url, router(url, eventually, session) as (process, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peak = Peak(process)
        await peak.send(writer, begin, piece)
        with suppress(ConnectionError):
            assert (await reader.readline()).split(b" ")[1] in (b"400", b"413", b"414", b"431")
        peak.measure()
        writer.close()

    assert peak.size <= bound + MARGIN


@pytest.mark.thorough
@pytest.mark.parametrize("part", ANSWERS)
async def test_an_answer_of_200_mb_takes_no_more_memory_than_its_bound(part, session, eventually):
    begin, piece, bound = ANSWERS[part]
    sent: asyncio.Future[Peak] = asyncio.get_running_loop().create_future()

    async def answer(writer: asyncio.StreamWriter) -> None:
        peak = Peak(process)
        # What nobody reads is never sent whole.
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await peak.send(writer, begin, piece)
        peak.measure()
        if not sent.done():
            sent.set_result(peak)

    async with engine(answer) as url, router(url, eventually, session) as (process, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=MEBIBYTE)
        writer.write(ASK)
        if part == "an answer that nobody reads":
            writer.transport.pause_reading()
        peak = await sent
        writer.close()

    assert peak.size <= bound + MARGIN
