"""Outages of the API server: the router goes on with the endpoints that it knows."""

import asyncio
import logging

import pytest
from aiohttp import web
from fake_api import event
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.router.sources.kubernetes import watch
from engine_server.router.sources.kubernetes.access import Access

KNOWN = ["http://10.0.0.1:8000"]


def answering(status: int, body: str = "", content_type: str = "application/json"):
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type=content_type)

    return answer


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def reset(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    return web.Response()


async def break_off(request: web.Request) -> web.StreamResponse:
    """End a list, or a line of a watch, in its middle."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"metadata": {"resourceVersion": "9"}, "items": [')
    request.transport.abort()
    return response


async def error_event(request: web.Request) -> web.StreamResponse:
    """Refuse lists, and end each watch with an error."""
    if "watch" not in request.query:
        return web.json_response({"message": "etcdserver: no leader"}, status=500)
    data = event("ERROR", {"kind": "Status", "code": 500, "message": "etcdserver: no leader"})
    return web.Response(body=data)


OUTAGES = {
    "401": answering(401, '{"kind": "Status", "message": "Unauthorized"}'),
    "403": answering(403, '{"kind": "Status", "message": "forbidden"}'),
    "404": answering(404, "404 page not found", "text/plain"),
    "410": answering(410, '{"kind": "Status", "message": "too old resource version"}'),
    "429": answering(429),
    "500": answering(500, "<html>"),
    "503": answering(503, "[]"),
    "redirect to itself": answering(301),
    "page of a proxy": answering(200, "<html>log in</html>", "text/html"),
    "empty body": answering(200),
    "empty object": answering(200, "{}"),
    "null": answering(200, "null"),
    "list of another kind": answering(200, '{"metadata": {"resourceVersion": "9"}, "items": [{}]}'),
    "hang": hang,
    "reset": reset,
    "broken list": break_off,
    "error event": error_event,
}


@pytest.fixture
async def followed(api, follow, monkeypatch):
    """A source that knows one endpoint. Its requests end soon when nobody answers them, and are soon repeated."""
    monkeypatch.setattr(watch, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "LIST_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(watch, "WATCH_SECONDS", 0)
    api.items["llmdeployments"] = [llmd("m", namespace="x")]
    api.items["endpointslices"] = [slice_of("m", "s", endpoint("10.0.0.1"), namespace="x")]
    followed = await follow(Access(api.url))
    assert followed.live("m") == KNOWN
    return followed


def failures(followed) -> list[int]:
    return [state.failures for state in followed.source.watches()]


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
async def test_known_endpoints_stay_in_use_until_the_api_server_answers_again(
    api, followed, eventually, outage
):
    api.outage = outage
    asked = len(api.queries)
    for queue in api.watches.values():
        queue.put_nowait(None)
    await eventually(lambda: len(api.queries) >= asked + 8)
    assert followed.source.synced and followed.live("m") == KNOWN
    api.items["endpointslices"] = [slice_of("m", "s", endpoint("10.0.0.2"), namespace="x")]
    api.outage = None
    await eventually(lambda: followed.live("m") == ["http://10.0.0.2:8000"])


async def test_age_of_the_watches_grows_until_the_api_server_answers_again(api, followed, eventually):
    assert {(state.kind, state.namespace) for state in followed.source.watches()} == {
        ("LLMDeployment", ""),
        ("EndpointSlice", ""),
    }

    def ages() -> list[float]:
        return [state.age for state in followed.source.watches()]

    await eventually(lambda: max(ages()) < 0.5)
    api.outage = hang
    await eventually(lambda: min(ages()) > 1.0)
    api.outage = None
    await eventually(lambda: max(ages()) < 0.5)


async def test_logs_an_outage_once_and_its_end(api, followed, eventually, caplog):
    caplog.set_level(logging.INFO, "engine_server.router.sources")
    before = failures(followed)
    api.outage = OUTAGES["503"]
    await eventually(
        lambda: all(now >= then + 4 for now, then in zip(failures(followed), before, strict=True))
    )
    api.outage = None
    await eventually(lambda: sum("again" in line for line in caplog.messages) == 2)
    assert sum("failed" in line and "503" in line for line in caplog.messages) == 2


async def test_a_fault_while_a_change_is_applied_does_not_end_the_source(
    api, follow, eventually, monkeypatch
):
    followed = await follow(Access(api.url))
    put, faults = followed.directory.put, ["a fault"]

    def fail_once(deployment):
        if faults:
            raise RuntimeError(faults.pop())
        put(deployment)

    monkeypatch.setattr(followed.directory, "put", fail_once)
    api.watches["llmdeployments"].put_nowait(event("ADDED", llmd("m", namespace="x", resourceVersion="8")))
    api.items["llmdeployments"] = [llmd("m", namespace="x")]
    await eventually(lambda: followed.live("m") == [])
    assert not faults and not followed.task.done()
