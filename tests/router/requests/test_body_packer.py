"""The bodies of streams: packed while the stream runs, restored to continue it, and forgotten for lack of memory."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from resumable_streams import WHOLE, Stream, reset
from router_process import start_process

from engine_server.router.requests import body_packer

TEXT = "the quick brown fox " * 10_000
BUFFER_BYTES = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nFairlead-Model: m\r\nTransfer-Encoding: chunked\r\n\r\n"
COMMENT_CHUNK = b"6\r\n: on\n\n\r\n"
STREAMS = 2_500


@pytest.fixture(autouse=True)
def pack_immediately(monkeypatch):
    monkeypatch.setattr(body_packer, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(body_packer, "PACK_AFTER_SECONDS", 0.0)


class Breaking:
    """A failure of an engine that happens when the test says so."""

    def __init__(self) -> None:
        self.now = asyncio.Event()

    async def __call__(self, engine, request, writer, number):
        await writer.drain()
        await self.now.wait()
        await reset(engine, request, writer, number)


async def begin(router, content: str | list):
    """Begin a stream, and return the response once it has its first event."""
    response = await router.chat(stream=True, messages=[{"role": "user", "content": content}])
    assert response.status == 200
    await response.content.readuntil(b"\n\n")
    return response


async def test_the_body_of_a_stream_is_packed_and_whole_again_when_the_stream_continues(
    start_engine, start_router, eventually
):
    breaking = Breaking()
    stream = Stream(3, failure=breaking)
    engines = [await start_engine(stream) for _ in range(2)]
    router = await start_router({"m": engines})
    response = await begin(router, TEXT)

    async def is_packed() -> bool:
        return 0 < await router.metric("fairlead_router_buffer_bytes") < len(TEXT) / 20

    await eventually(is_packed)
    breaking.now.set()

    assert b'data: {"n": 0}\n\n' + await response.read() == WHOLE
    received = [request for engine in engines for request in engine.received]
    first, second = sorted((json.loads(request.body) for request in received), key=len)
    assert second.items() > first.items() and second["messages"][0]["content"] == TEXT
    assert await router.metric("fairlead_router_buffer_bytes") == 0


async def test_the_body_of_a_stream_with_a_picture_is_kept_uncompressed_and_may_be_forgotten(
    start_engine, start_router, eventually
):
    breaking = Breaking()

    async def behave(engine, request, writer):
        await Stream(3, failure=breaking)(engine, request, writer)

    router = await start_router({"m": [await start_engine(behave)]}, buffer_bytes=BUFFER_BYTES)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    streams = [await begin(router, [picture])]

    async def others_are_packed() -> bool:
        return 300_000 < await router.metric("fairlead_router_buffer_bytes") < 300_000 + len(TEXT) / 2

    for _ in range(2):  # the second one is packed by a later sweep, after the picture had its turn
        streams.append(await begin(router, TEXT))
        await eventually(others_are_packed)
    assert await router.metric("fairlead_router_forgotten_bodies_total") == 0

    streams += [await begin(router, os.urandom(180_000).hex()) for _ in range(2)]

    assert await router.metric("fairlead_router_forgotten_bodies_total") >= 1
    breaking.now.set()
    assert b'"interrupted"' in await streams[0].read()
    for stream in streams:
        stream.close()


async def test_packed_bodies_are_forgotten_before_a_request_is_refused(
    start_engine, start_router, eventually
):
    breaking = Breaking()

    async def behave(engine, request, writer):
        await Stream(3, failure=breaking)(engine, request, writer)

    router = await start_router({"m": [await start_engine(behave)]}, buffer_bytes=BUFFER_BYTES)
    noise = os.urandom(200_000).hex()
    stream = await begin(router, noise)

    async def is_packed() -> bool:
        return 0 < await router.metric("fairlead_router_buffer_bytes") < len(noise) * 0.7

    await eventually(is_packed)
    others = [await begin(router, os.urandom(180_000).hex()) for _ in range(2)]
    assert await router.metric("fairlead_router_forgotten_bodies_total") >= 1

    breaking.now.set()
    rest = await stream.read()
    assert b'"interrupted"' in rest
    assert await router.metric("fairlead_router_interrupted_total") >= 1
    for other in others:
        other.close()


async def test_nothing_is_kept_of_the_body_of_a_stream_that_cannot_be_continued(
    start_engine, start_router, eventually
):
    breaking = Breaking()
    engine = await start_engine(Stream(3, failure=breaking, reports=False))
    router = await start_router({"m": [engine]})
    response = await begin(router, TEXT)

    async def nothing_is_kept() -> bool:
        return await router.metric("fairlead_router_buffer_bytes") == 0

    await eventually(nothing_is_kept)
    assert await router.metric("fairlead_router_forgotten_bodies_total") == 0
    response.close()


async def test_large_bodies_of_open_streams_leave_room_for_small_requests(
    start_engine, start_router, eventually
):
    """The large ones wait for an answer, so that nothing can be packed."""

    async def behave(engine, request, writer):
        if len(request.body) > 100_000:
            await asyncio.Event().wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]}, buffer_bytes=BUFFER_BYTES)
    large = [asyncio.create_task(router.chat(prompt="x" * 200_000)) for _ in range(12)]

    async def is_full() -> bool:
        return await router.metric("fairlead_router_buffer_bytes") > BUFFER_BYTES / 2

    await eventually(is_full)
    for _ in range(10):
        async with router.chat(prompt="x" * 1000) as response:
            assert response.status == 200
    for task in large:
        task.cancel()


async def agent(url: str, body: bytes, begun: asyncio.Semaphore) -> None:
    host, port = url.removeprefix("http://").split(":")
    async with begun:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body)
        )
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await reader.read()


def resident_bytes(process: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1]) * 1024


@pytest.mark.thorough
async def test_thousands_of_streams_with_large_bodies_take_less_than_300_mb(start_engine, eventually):
    words = [f"{word:x}" for word in range(0x10000, 0x10000 + 4000)]
    texts = ["".join(words[(7 * n * n + n * start) % 4000] for n in range(16_000))[:65_000] + TEXT[:35_000]
             for start in range(7)]  # fmt: skip
    bodies = [json.dumps({"model": "m", "stream": True, "messages": text}).encode() for text in texts]

    async def behave(engine, request, writer):
        writer.write(HEAD + COMMENT_CHUNK)
        engine.received.clear()
        await asyncio.Event().wait()

    engine = await start_engine(behave)
    process, url, _ = await start_process("--endpoint", f"m={engine.url}", "--buffer-bytes", str(128 << 20))
    begun = asyncio.Semaphore(50)
    agents = [asyncio.create_task(agent(url, bodies[n % 7], begun)) for n in range(STREAMS)]
    try:
        await eventually(lambda: len(engine.writers) >= STREAMS or any(task.done() for task in agents))
        await eventually(lambda: resident_bytes(process.pid) < 300_000_000)
        assert not any(task.done() for task in agents)
    finally:
        for task in agents:
            task.cancel()
        process.terminate()
        await process.wait()
