"""Memory for answers that are built whole, until clients have read them."""

import asyncio
import json
from typing import Any

from waiting import until_async

from engine_server.server.http.built_answer import PIECE, BuiltAnswer, reserve
from engine_server.server.http.disconnect import DISCONNECT, WhileConnected
from engine_server.server.http.errors import ApiError
from engine_server.server.http.request_body import RequestBody
from engine_server.shared.shares import Shares

LARGE = b"a" * (3 * PIECE)


class SlowClient:
    """A client whose server waits until the test reads each message."""

    def __init__(self, middleware: RequestBody, address: str) -> None:
        self.messages: list[Any] = []
        self._reads = asyncio.Semaphore(0)
        scope = {
            "type": "http", "method": "POST", "path": "/", "client": (address, 1),
            "headers": [(b"content-type", b"application/json")],
            "extensions": {DISCONNECT: {"while_connected": WhileConnected()}},
        }  # fmt: skip
        self.task = asyncio.create_task(middleware(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        await self._reads.acquire()

    async def read(self, count: int = 100) -> None:
        for _ in range(count):
            self._reads.release()
        await asyncio.sleep(0)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def answering(body: bytes) -> Any:
    """Return an application that reserves memory for its answer and builds it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            reserve(len(body))
            answer: Any = BuiltAnswer(body)
        except ApiError as error:
            answer = error.response()
        await answer(scope, receive, send)

    return app


async def test_an_answer_counts_until_the_client_has_read_it() -> None:
    answers = Shares(4 * len(LARGE))
    client = SlowClient(RequestBody(answering(LARGE), 80, answers=answers), "10.0.0.1")
    await until_async(lambda: bool(client.messages))
    assert answers.used == len(LARGE)
    await client.read(2)
    assert len(client.body) < len(LARGE) and answers.used == len(LARGE)
    await client.read()
    await client.task
    assert (client.body, answers.used) == (LARGE, 0)
    assert client.messages[0]["status"] == 200
    assert dict(client.messages[0]["headers"])[b"content-length"] == str(len(LARGE)).encode()


async def test_answers_that_nobody_reads_leave_room_for_other_senders() -> None:
    answers = Shares(4 * len(LARGE))
    middleware = RequestBody(answering(LARGE), 80, answers=answers)
    unread = [SlowClient(middleware, "10.0.0.1") for _ in range(5)]
    await until_async(lambda: all(client.messages for client in unread))
    refused = [client for client in unread if client.messages[0]["status"] == 503]
    assert refused
    other = SlowClient(RequestBody(answering(LARGE[: 2 * PIECE]), 80, answers=answers), "10.0.0.2")
    await until_async(lambda: bool(other.messages))
    assert other.messages[0]["status"] == 200
    for client in [*unread, other]:
        await client.read()
        await client.task
    assert answers.used == 0
    assert json.loads(refused[0].body)["error"]["code"] == "buffer_full"
    assert b"retry-after" in dict(refused[0].messages[0]["headers"])


async def test_a_disconnect_returns_the_memory_of_an_answer() -> None:
    answers = Shares(4 * len(LARGE))
    client = SlowClient(RequestBody(answering(LARGE), 80, answers=answers), "10.0.0.1")
    await until_async(lambda: bool(client.messages))
    client.task.cancel()
    await asyncio.wait([client.task])
    assert answers.used == 0
