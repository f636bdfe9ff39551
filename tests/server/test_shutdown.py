"""The order of a drain, with real signals and a gate over a waiting handler."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import until_async

from engine_server.server import shutdown
from engine_server.server.admission import Admission
from engine_server.server.engine_load import EngineLoad
from engine_server.server.gate import Drain, Gate
from engine_server.server.http.api_keys import ApiKeys
from engine_server.server.shutdown import Shutdown

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


class Engine:
    def check_room(self) -> None:
        pass


class Model:
    engine = Engine()
    fingerprint = "model"
    stream_settings = "settings"


class Host:
    model = Model()
    engine_load = EngineLoad()
    loading = False
    death = None
    phase = None


class Service:
    """A gate whose requests wait until they are released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        host: Any = Host()
        self.gate = Gate(host)
        self._app = Admission(self._handle, host, self.gate, ApiKeys([]), public=(), exempt=())

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def request(self) -> dict[str, Any]:
        """Return the start message of the response."""
        messages = []

        async def send(message: Any) -> None:
            messages.append(message)

        async def receive() -> Any:
            raise AssertionError

        await self._app(dict(SCOPE), receive, send)
        start: dict[str, Any] = messages[0]
        return start


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in shutdown.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_drain_finishes_requests_in_flight_and_refuses_new_ones() -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 10, 0, pytest.fail).run())
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


@pytest.mark.parametrize(
    ("number", "phase"), [(signal.SIGTERM, Drain.ANNOUNCED), (signal.SIGINT, Drain.CLOSED)]
)
async def test_requests_are_still_accepted_in_the_grace_after_sigterm_alone(
    number: signal.Signals, phase: Drain
) -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 1000, 1000, pytest.fail).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), number)
    await until_async(lambda: service.gate.drain is phase)
    service.release.set()
    assert (await service.request())["status"] == (200 if phase is Drain.ANNOUNCED else 503)
    ended.cancel()
    await running


async def test_drain_timeout_ends_requests_in_flight() -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 0.01, 0, service.release.set).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await ended == 0
    await running


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_ends_the_server_immediately(second: signal.Signals) -> None:
    service = Service()
    running = asyncio.create_task(service.request())
    ended = asyncio.create_task(Shutdown(service.gate, 1000, 0, pytest.fail).run())
    await until_async(lambda: service.gate.in_flight == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    await until_async(lambda: service.gate.drain is Drain.CLOSED)
    os.kill(os.getpid(), second)
    assert await ended == 128 + second
    assert not running.done()
    running.cancel()
