"""A directory that a Kubernetes source keeps up to date."""

import asyncio

import pytest

from engine_server.router.routing.directory import Directory
from engine_server.router.routing.health import Health
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
async def follow(eventually):
    followed = []

    async def start(access: Access, *namespaces: str, synced: bool = True) -> Followed:
        one = Followed(KubernetesSource(access, namespaces))
        followed.append(one)
        if synced:
            await eventually(lambda: one.source.synced)
        return one

    yield start
    for one in followed:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in followed), return_exceptions=True)
