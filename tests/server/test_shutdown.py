"""The drain's order, with real signals and a gate over a handler that waits."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import until_async

from engine_server.server import shutdown
from engine_server.server.gate import Drain, Gate
from engine_server.server.shutdown import Shutdown

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


class Host:
    loading = False
    dead = None
    phase = None


class Service:
    """A gate over requests that take until they are released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.gate = Gate(self._handle, Host())  # type: ignore[arg-type]

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def request(self) -> dict[str, Any]:
        """The response's start."""
        messages = []

        async def send(message: Any) -> None:
            messages.append(message)

        async def receive() -> Any:
            raise AssertionError

        await self.gate(SCOPE, receive, send)
        start: dict[str, Any] = messages[0]
        return start


@pytest.fixture(autouse=True)
def no_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "ANNOUNCE_SECONDS", 0)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in shutdown.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_what_is_under_way_finishes_and_what_is_new_is_refused() -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 10, pytest.fail).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    await until_async(lambda: service.gate.drain is Drain.CLOSED)
    refused = await service.request()
    assert refused["status"] == 503
    assert {(b"retry-after", b"1"), (b"connection", b"close")} <= set(refused["headers"])
    assert not ended.done()
    service.release.set()
    assert (await running)["status"] == 200
    assert await ended == 0


async def test_the_timeout_cuts_what_is_under_way() -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 0.01, service.release.set).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended == 0
    await running


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once(second: signal.Signals) -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 1000, pytest.fail).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    await until_async(lambda: service.gate.drain is Drain.CLOSED)
    os.kill(os.getpid(), second)
    assert await ended == 128 + second
    assert not running.done()
    running.cancel()
