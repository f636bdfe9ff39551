"""Request bodies: their limit, and the memory that all of them share."""

import asyncio
import json
from typing import Any

import pytest
from waiting import until_async

from engine_server.contract.base.caller import ReportedCaller
from engine_server.contract.wire.body_structure import UNCOUNTED_BYTES
from engine_server.contract.wire.continuation import ROUTER_FIELD_BYTES
from engine_server.engine.loop.turns import sender
from engine_server.server.http.disconnect import DISCONNECT, WhileConnected
from engine_server.server.http.errors import ApiError
from engine_server.server.http.request_body import RequestBody, check_structure
from engine_server.shared.shares import Shares

JSON = [(b"content-type", b"application/json")]
SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Client:
    """One request to a middleware, whose pieces of a body the test sends."""

    def __init__(self, middleware: RequestBody, address: str = "10.0.0.1", headers: Any = ()) -> None:
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.messages: list[Any] = []
        extensions = {DISCONNECT: {"while_connected": WhileConnected()}}
        scope = {**SCOPE, "client": (address, 1), "extensions": extensions, "headers": [*JSON, *headers]}
        self.task = asyncio.create_task(middleware(scope, self._incoming.get, self._record))

    async def _record(self, message: Any) -> None:
        self.messages.append(message)

    def queue(self, piece: bytes, more: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    async def send(self, piece: bytes, more: bool) -> None:
        self.queue(piece, more)
        await until_async(self._incoming.empty)

    async def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})
        await self.task

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])


async def tell_sender(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(sender.get()).encode()})


async def test_sender_is_the_reported_caller_or_else_the_address() -> None:
    caller = ReportedCaller(id="1" * 32, scope="2" * 32, priority=0)
    reported = [(b"fairlead-caller", caller.value().encode())]
    known, unknown = (
        Client(RequestBody(tell_sender, 80), headers=reported),
        Client(RequestBody(tell_sender, 80)),
    )
    for client in (known, unknown):
        await client.send(b"{}", more=False)
        await client.task
    assert known.messages[1]["body"] == b"1" * 32
    assert unknown.messages[1]["body"] == b"10.0.0.1"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def test_bodies_together_are_bounded() -> None:
    shares = Shares(100)
    middleware = RequestBody(echo, 80, shares)
    first, second = Client(middleware), Client(middleware, "10.0.0.2")
    await first.send(bytes(60), more=True)
    await second.send(bytes(30), more=True)
    await second.send(bytes(20), more=True)
    await second.task
    assert second.status == 503
    assert json.loads(second.messages[1]["body"])["error"]["code"] == "buffer_full"
    assert (b"connection", b"close") in second.messages[0]["headers"]
    await first.send(b"end", more=False)
    await first.task
    assert first.messages[1]["body"] == bytes(60) + b"end"
    assert shares.used == 0


async def test_one_sender_leaves_room_for_another() -> None:
    shares = Shares(100)
    middleware = RequestBody(echo, 80, shares)
    greedy = [Client(middleware, "10.0.0.1") for _ in range(9)]
    for client in greedy:
        await client.send(bytes(10), more=True)
    other = Client(middleware, "10.0.0.2")
    await other.send(bytes(10), more=False)
    await other.task
    assert greedy[-1].status == 503
    assert other.messages[1]["body"] == bytes(10)
    for client in greedy[:-1]:
        await client.disconnect()
    assert shares.used == 0


async def test_body_is_counted_until_its_request_ends() -> None:
    release = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await echo(scope, receive, send)

    shares = Shares(100)
    middleware = RequestBody(wait, 80, shares)
    running = Client(middleware)
    await running.send(bytes(70), more=False)
    late = Client(middleware)
    await late.send(bytes(40), more=False)
    await late.task
    assert late.status == 503
    release.set()
    await running.task
    assert (running.status, shares.used) == (200, 0)


async def test_disconnect_in_a_body_returns_its_memory() -> None:
    shares = Shares(100)
    client = Client(RequestBody(echo, 80, shares))
    await client.send(bytes(50), more=True)
    await client.disconnect()
    assert shares.used == 0


async def test_others_have_their_turn_between_two_large_bodies() -> None:
    done: list[str] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        done.append("body")

    async def turn_over_and_over() -> None:
        while len(done) < 20 and done.count("body") < 3:
            await asyncio.sleep(0)
            done.append("another")

    middleware = RequestBody(note, 1 << 20)
    clients = [Client(middleware) for _ in range(3)]
    for client in clients:
        client.queue(bytes(UNCOUNTED_BYTES + 1))
    await asyncio.gather(turn_over_and_over(), *(client.task for client in clients))

    first, second, third = (number for number, name in enumerate(done) if name == "body")
    assert second - first > 1 and third - second > 1


async def test_body_over_its_own_limit_closes_the_connection() -> None:
    shares = Shares(100)
    client = Client(RequestBody(echo, 80, shares))
    await client.send(bytes(81), more=True)
    await client.task
    assert client.status == 413
    assert (b"connection", b"close") in client.messages[0]["headers"]
    assert shares.used == 0


@pytest.mark.parametrize("declared", [True, False])
async def test_limit_leaves_room_for_the_tokens_with_which_a_router_continues_a_stream(
    declared: bool,
) -> None:
    async def send(size: int) -> int:
        headers = [(b"fairlead-resume", b"1")]
        if declared:
            headers.append((b"content-length", b"%d" % size))
        client = Client(RequestBody(echo, 80), headers=headers)
        client.queue(bytes(size))
        await client.task
        return client.status

    assert await send(80 + ROUTER_FIELD_BYTES) == 200
    assert await send(81 + ROUTER_FIELD_BYTES) == 413


TOO_MANY = [b"[" * 300_000, b'{"a":' * 300_000, b"1," * 300_000, b'"a,",' * 600_000, rb'"\\",1,' * 300_000]


@pytest.mark.parametrize("body", TOO_MANY, ids=["lists", "objects", "numbers", "strings", "escapes"])
def test_structure_that_takes_long_to_parse_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="at most 262,144 are allowed"):
        check_structure(body, SCOPE)


def test_token_ids_may_be_a_million_where_a_request_may_have_them() -> None:
    body = b'{"prompt": [%s]}' % b",".join([b"7"] * 1_000_000)
    continued = {**SCOPE, "headers": [(b"fairlead-resume", b"1")]}
    check_structure(body, {**SCOPE, "path": "/v1/completions"})
    check_structure(body, continued)
    with pytest.raises(ApiError, match="at most 262,144 are allowed"):
        check_structure(body, SCOPE)
    with pytest.raises(ApiError, match="at most 1,048,576 are allowed"):
        check_structure(body + body, {**SCOPE, "path": "/v1/completions"})


TEXTS = [b"a" * (30 << 20), b"1,2\\n" * 2_000_000, rb"{\"a\": [1, 2]}, " * 1_000_000, rb"\\," * 1_000_000]


@pytest.mark.parametrize("text", TEXTS, ids=["letters", "table", "json", "backslashes"])
def test_long_text_is_accepted(text: bytes) -> None:
    check_structure(b'{"prompt": "' + text + b'"}', SCOPE)
