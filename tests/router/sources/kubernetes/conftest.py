"""A directory that a Kubernetes source keeps up to date."""

import asyncio
from uuid import uuid4

import pytest
from aiohttp import web
from fake_api import FakeApi
from kubernetes_client import Client

from engine_server.router.routing.directory import Directory
from engine_server.router.routing.health import Health
from engine_server.router.sources.kubernetes import watch
from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.source import KubernetesSource


class Followed:
    """A running source, and the directory that it updates."""

    def __init__(self, source: KubernetesSource) -> None:
        self.source = source
        self.health = Health()
        self.directory = Directory("least_load", on_added=self.health.add, on_removed=self.health.remove)
        self.task = asyncio.create_task(source.run(self.directory))

    def live(self, model: str) -> list[str] | None:
        route = self.directory.resolve(model)
        return (
            None
            if route is None
            else [str(one.address) for one in route.endpoints if self.health.is_live(one)]
        )


@pytest.fixture
async def api(monkeypatch):
    monkeypatch.setattr(watch, "FIRST_PAUSE_SECONDS", 0.02)
    fake = FakeApi()
    application = web.Application()
    application.router.add_get("/{path:.*}", fake.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    for queue in fake.watches.values():
        queue.put_nowait(None)
    await runner.cleanup()


@pytest.fixture
async def follow(eventually):
    followed = []

    async def start(
        access: Access, *namespaces: str, synced: bool = True, organizations: tuple[str, ...] = ()
    ) -> Followed:
        one = Followed(KubernetesSource(access, namespaces, organizations=organizations))
        followed.append(one)
        if synced:
            await eventually(lambda: one.source.synced)
        return one

    yield start
    for one in followed:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in followed), return_exceptions=True)


@pytest.fixture
def namespaces(api_server, definition):
    """Return clients of two namespaces, which no other test has."""
    clients = [Client(api_server.kubeconfig, f"{color}-{uuid4().hex[:8]}") for color in ("red", "blue")]
    for client in clients:
        client.create_namespace(client.namespace)
    yield clients
    for client in clients:
        client.delete_all("llmd")
        client.delete_all("endpointslice")
