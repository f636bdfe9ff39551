"""A directory that a Kubernetes source keeps up to date."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web
from api_server import FakeApi

from engine_server.router.routing.directory import Directory
from engine_server.router.routing.health import Health
from engine_server.router.sources.kubernetes import watch
from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.source import KubernetesSource

CRD = Path(__file__).parents[4] / "charts" / "fairlead" / "files" / "llmdeployment-crd.yaml"


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


@pytest.fixture
def cluster(api_server):
    """Install the CRD and create two namespaces; (apply, delete, names of the namespaces)."""

    def kubectl(*arguments: str, stdin=None) -> None:
        result = api_server.kubectl(*arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr

    kubectl("apply", "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", "crd/llmdeployments.fairlead.dev")
    namespaces = [f"{color}-{uuid4().hex[:8]}" for color in ("red", "blue")]
    for namespace in namespaces:
        kubectl("create", "namespace", namespace)

    def apply(namespace: str, *objects: dict) -> None:
        kubectl(
            "apply",
            "-n",
            namespace,
            "-f",
            "-",
            stdin={"apiVersion": "v1", "kind": "List", "items": [*objects]},
        )

    def delete(namespace: str, kind: str, name: str) -> None:
        kubectl("delete", kind, name, "-n", namespace)

    yield apply, delete, namespaces
    for namespace in namespaces:
        kubectl("delete", "llmdeployments,endpointslices", "--all", "-n", namespace)
