"""A source of one deployment whose replicas a test adds and removes."""

import pytest

from engine_server.contract.cluster.api import Key
from engine_server.router.requests.hold import waking
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.waker import WakeError


class Scale:
    """A deployment of which requests are counted that wake it. It fails as often as `failures` says."""

    synced = True

    def watches(self):
        return ()

    def __init__(self) -> None:
        self.key = Key("default", "m")
        self.wakes = 0
        self.failures = 0
        self.directory = None

    async def run(self, directory) -> None:
        self.directory = directory
        self.set(waker=self)

    async def wake(self) -> None:
        self.wakes += 1
        if self.failures:
            self.failures -= 1
            raise WakeError("no")

    def set(self, *engines, **changed) -> None:
        """Replace the deployment: its engines and what the source reports."""
        addresses = tuple(Address.parse(engine.url) for engine in engines)
        self.directory.put(Deployment(self.key, ("m",), addresses, vouched=True, **changed))

    def delete(self) -> None:
        self.directory.remove(self.key)


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.setattr(waking, "FIRST_PAUSE_SECONDS", 0.01)
    return Scale()


@pytest.fixture
def start_scaled(start_router, scale, eventually):
    """Return the function that starts a router for `scale`, which is at zero replicas."""

    async def start(settings: HoldSettings | None = None, **changed):
        router = await start_router(sources=[scale], hold=settings or HoldSettings(), **changed)
        await eventually(lambda: scale.directory is not None)
        return router

    return start
