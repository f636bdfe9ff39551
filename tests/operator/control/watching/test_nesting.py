"""LLMDeployments with values that are nested too deeply for Python's parsers, on a real API server."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession, web
from kubernetes_objects import nested_llmd
from llm_operator import informer as informers
from llm_operator.control.watching.shallow_response import ShallowResponse
from waiting import until

# The API server's own limit is 10,000.
LEVELS = 1500


def poison(world: Any, name: str) -> None:
    """Create an LLMDeployment that the API server stores."""
    world.call("POST", world.path("llmd"), nested_llmd(name, LEVELS))


@pytest.mark.more
def test_an_operator_starts_and_watches_beside_an_object_that_is_nested_too_deeply(
    world: Any, manifest: Any, start_operator: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "CONFIRM_SECONDS", 1)
    home = world.namespace
    world.apply(manifest(f"{name[:40]}-before"))
    poison(world, name)

    operator = start_operator(
        world.service_account(), f"--namespace={home}", f"--lease-namespace={home}", "--relist-seconds=3600"
    )

    until(lambda: world.condition(f"{name[:40]}-before", "Ready"))
    until(lambda: world.degraded(name, "InvalidSpec"))
    assert "levels" in world.condition(name, "Degraded")["message"]
    # Its watches report what is created later; no relist would.
    world.apply(manifest(f"{name[:40]}-after"))
    until(lambda: world.condition(f"{name[:40]}-after", "Ready"))
    poison(world, f"{name[:40]}-later")
    until(lambda: world.degraded(f"{name[:40]}-later", "InvalidSpec"))
    world.apply(manifest(f"{name[:40]}-last"))
    until(lambda: world.condition(f"{name[:40]}-last", "Ready"))
    assert "failed" not in operator.log and "Traceback" not in operator.log, operator.log
    assert operator.stop() == 0


async def test_a_watch_can_be_left_before_its_end() -> None:
    line = b'{"type":"ADDED","object":{}}'

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line[:9])
        await response.write(line[9:] + b"\n" + line)
        await asyncio.Event().wait()
        return response

    application = web.Application()
    application.router.add_get("/llmdeployments", watch)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/llmdeployments?watch=true"

    async with ClientSession(response_class=ShallowResponse) as session, session.get(url) as response:
        received = await anext(aiter(response.content.iter_chunked(1024)))

    assert received == line + b"\n"
    assert response.closed
    await runner.cleanup()
