"""Exchanges: what they wait for is the only thing that resumes them."""

import asyncio

from engine_server.router.errors import no_replica
from engine_server.router.http.exchange import Exchange, Wait, wait_for
from engine_server.router.http.wire import Request


class Client:
    """Records what an exchange does with its connection."""

    def __init__(self) -> None:
        self.closing = False
        self.blocked = False
        self.written = b""
        self.events: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self) -> None:
        self.events.append("finish")

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")


def new_exchange(client: Client, method: bytes = b"POST", *, http11: bool = True) -> Exchange:
    return Exchange(
        client, Request(method, b"/v1/completions", b"", {}, bytearray(), http11, not http11, b"id")
    )


def test_only_the_wait_in_force_resumes_an_exchange():
    exchange = new_exchange(Client())
    answer_arrived, timer = Wait(exchange), Wait(exchange)
    steps: list[str] = []

    async def answer() -> None:
        await timer
        steps.append("timer")
        await answer_arrived
        steps.append("answer")

    exchange.begin(answer())
    answer_arrived.wake()
    assert steps == []
    timer.wake()
    timer.wake()
    assert steps == ["timer"]
    answer_arrived.wake()
    assert steps == ["timer", "answer"]


def test_a_wait_of_an_ended_exchange_does_not_resume_the_next_one():
    client = Client()
    first, second = new_exchange(client), new_exchange(client)
    late, current = Wait(first), Wait(second)

    async def wait(for_what: Wait) -> None:
        await for_what

    first.begin(wait(late))
    late.wake()
    second.begin(wait(current))
    late.wake()
    assert client.events == ["finish"]
    current.wake()
    assert client.events == ["finish", "finish"]


def test_a_wait_does_not_resume_an_exchange_whose_client_left():
    client = Client()
    exchange = new_exchange(client)
    wait = Wait(exchange)
    cleaned_up: list[bool] = []

    async def answer() -> None:
        try:
            await wait
        finally:
            cleaned_up.append(True)

    exchange.begin(answer())
    exchange.stop()
    wait.wake()
    assert cleaned_up == [True]
    assert client.events == []


async def test_waits_for_an_asyncio_future():
    client = Client()
    exchange = new_exchange(client)
    future = asyncio.get_running_loop().create_future()
    results: list[str] = []

    async def answer() -> None:
        await wait_for(future, exchange)
        results.append(future.result())

    exchange.begin(answer())
    future.set_result("ready")
    await asyncio.sleep(0)
    assert results == ["ready"] and client.events == ["finish"]


def test_a_request_error_is_the_answer():
    client = Client()

    async def answer() -> None:
        raise no_replica("m")

    new_exchange(client).begin(answer())
    assert client.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 1\r\n" in client.written and b"no_replica" in client.written
    assert client.events == ["finish"]


def test_a_fault_in_the_router_closes_the_connection_and_is_logged(caplog):
    client = Client()

    async def answer() -> None:
        raise KeyError("fault")

    new_exchange(client).begin(answer())
    assert client.closing and client.events == ["close", "finish"]
    assert "failed to answer a request" in caplog.text


def test_cuts_an_http_1_0_answer_with_a_reset():
    """An orderly close would mark the end of a complete answer."""
    client = Client()
    new_exchange(client, http11=False).cut()
    assert client.events == ["abort"]


class Source:
    """Records whether an engine's transport is paused."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True


def test_engine_is_paused_from_the_start_if_the_client_is_slow_to_read():
    client, fast, slow = Client(), Source(), Source()
    exchange = new_exchange(client)
    exchange.follow(fast)
    client.blocked = True
    exchange.follow(slow)
    assert (fast.paused, slow.paused) == (False, True)


def test_error_after_the_head_of_a_stream_is_its_last_event():
    client = Client()
    exchange = new_exchange(client)
    exchange.streaming = True

    async def answer() -> None:
        raise no_replica("m")

    exchange.begin(answer())
    size, _, rest = client.written.partition(b"\r\n")
    event, end = rest[: int(size, 16)], rest[int(size, 16) :]
    assert event.startswith(b'data: {"error":') and event.endswith(b"\n\n")
    assert end == b"\r\n0\r\n\r\n"
    assert client.events == ["finish"]
