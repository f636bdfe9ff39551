"""Refusals of a request whose client has the head of a stream."""

import asyncio
import json

import pytest
from resumable_streams import KEEP_ALIVE, Stream, keep_alive, read, refuse


@pytest.mark.parametrize("status", [400, 503])
async def test_refusal_after_the_head_of_a_stream_is_an_error_event_and_no_second_head(
    start_engine, start_router, status
):
    """The first engine fails after a comment, and all others refuse the request with a long body."""
    started = asyncio.Event()

    async def behave(engine, request, writer):
        if started.is_set():
            refuse(writer, status, "x" * 40_000)
            return
        started.set()
        await Stream(0, failure=keep_alive)(engine, request, writer)

    router = await start_router({"m": [await start_engine(behave) for _ in range(4)]})
    body = await read(router)
    assert body.startswith(KEEP_ALIVE + b'data: {"error":') and b"HTTP/1.1" not in body


async def test_refusal_after_the_head_of_a_stream_keeps_its_message_and_code(start_engine, start_router):
    started = asyncio.Event()

    async def behave(engine, request, writer):
        if started.is_set():
            refuse(writer, 400, "invalid_value")
            return
        started.set()
        await Stream(0, failure=keep_alive)(engine, request, writer)

    router = await start_router({"m": [await start_engine(behave) for _ in range(2)]})
    event, _ = (await read(router)).removeprefix(KEEP_ALIVE).split(b"\n\n", 1)
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["message"]) == ("invalid_value", "invalid_value")


async def test_a_refusal_without_end_after_the_head_of_a_stream_is_broken_off(start_engine, start_router):
    started = asyncio.Event()

    async def behave(engine, request, writer):
        if not started.is_set():
            started.set()
            await Stream(0, failure=keep_alive)(engine, request, writer)
            return
        writer.write(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    router = await start_router({"m": [await start_engine(behave) for _ in range(4)]})
    body = await read(router)
    assert body.startswith(KEEP_ALIVE + b'data: {"error":')
