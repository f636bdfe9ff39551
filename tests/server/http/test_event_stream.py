"""Streams of events over ASGI, with comments while nothing happens."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from waiting import until_async

from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.chunks import CHUNKS, ChunkWriter
from engine_server.server.http.errors import ApiError
from engine_server.server.http.event_stream import KEEP_ALIVE, EventStream, Line, OpenAIStream

BUSY = ApiError(ErrorCode.QUEUE_FULL, "the queue is full")


class Source(OpenAIStream):
    """Events that a test puts; an exception fails the stream, and None ends it."""

    def __init__(self) -> None:
        self.ended = False
        self._put: list[bytes | Exception | None] = []
        self._changed = asyncio.Event()

    def put(self, *events: bytes | Exception | None) -> None:
        self._put += events
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def next(self, line: Line | None) -> bytes:
        await self._changed.wait()
        self._changed.clear()
        events, self._put = self._put, []
        for event in events:
            if isinstance(event, Exception):
                raise event
            self.ended |= event is None
        return b"".join(event for event in events if isinstance(event, bytes))

    async def aclose(self) -> None:
        self.ended = True


class Client:
    """Receives a response of the events in `source`."""

    written_at = 0.0

    def __init__(self, keep_alive: float) -> None:
        self.source = Source()
        self.messages: list[Any] = []
        response = EventStream(self.source, keep_alive)
        scope = {"type": "http", "extensions": {CHUNKS: {"writer": self}}}
        self.task = asyncio.create_task(response(scope, self._receive, self._send))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    async def _receive(self) -> Any:
        raise AssertionError("a response does not read")

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    async def write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def test_idle_stream_gets_its_status_and_comments_before_the_first_event() -> None:
    client = Client(keep_alive=0.01)
    await until_async(lambda: client.body.count(KEEP_ALIVE) >= 2)
    assert client.messages[0]["status"] == 200
    client.source.put(b"data: 1\n\n", None)
    await client.task
    assert client.body.replace(KEEP_ALIVE, b"") == b"data: 1\n\ndata: [DONE]\n\n"
    assert [message.get("more_body") for message in client.messages[1:]] == [True] * (
        len(client.messages) - 2
    ) + [False]


async def test_reports_to_the_router_do_not_stand_for_a_comment_to_the_client() -> None:
    client = Client(keep_alive=0.05)
    report = TokenReport(seed=1, token_ids=[7]).encode()
    async with asyncio.timeout(30):
        while KEEP_ALIVE not in client.body:
            client.source.put(report)
            await asyncio.sleep(0)
    client.source.put(None)
    await client.task


async def test_failure_before_the_first_byte_is_raised_and_sends_nothing() -> None:
    client = Client(keep_alive=60)
    client.source.put(BUSY)
    with pytest.raises(ApiError, match="the queue is full"):
        await client.task
    assert client.messages == []


async def test_failure_after_a_comment_is_an_error_event() -> None:
    client = Client(keep_alive=0.01)
    await until_async(lambda: KEEP_ALIVE in client.body)
    client.source.put(BUSY)
    await client.task
    assert client.body.replace(KEEP_ALIVE, b"") == b"data: " + BUSY.body() + b"\n\ndata: [DONE]\n\n"


async def test_cancelled_stream_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    client = Client(keep_alive=0.01)
    await until_async(lambda: KEEP_ALIVE in client.body)
    client.task.cancel()
    await asyncio.wait([client.task])
    await until_async(lambda: asyncio.all_tasks() == before)


async def test_a_chunk_waits_until_the_client_has_read_enough_of_the_earlier_ones() -> None:
    transport = mock.Mock()
    flow = FlowControl(transport)
    cycle: Any = SimpleNamespace(flow=flow, transport=transport, disconnected=False)
    flow.pause_writing()

    writing = asyncio.create_task(ChunkWriter(cycle).write(b"data: 1\n\n"))
    await asyncio.sleep(0)
    assert not transport.write.called
    flow.resume_writing()
    await writing

    transport.write.assert_called_once_with(b"9\r\ndata: 1\n\n\r\n")
