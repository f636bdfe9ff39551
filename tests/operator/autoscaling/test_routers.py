"""The addresses of routers from EndpointSlices, and the sum of their reports."""

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from kubernetes_objects import endpoint, slice_of
from llm_operator import metrics
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.autoscaling import routers
from llm_operator.autoscaling.autoscaler import Autoscaler, by_deployment, sample_of
from llm_operator.autoscaling.history import Load, Sample
from llm_operator.autoscaling.routers import METRICS_PORT_NAME, Routers, RouterService, addresses, aged
from llm_operator.control.watching.scales import Scale, Scales
from waiting import until_async

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DEMAND_PATH, DemandReport, DeploymentDemand, EndpointLoad
from engine_server.contract.cluster.endpoint_slices import EndpointSlice

SCALE = Scale(Autoscaling(max=3), replicas=1, ready_replicas=1, resource_version="1")
A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


def typed(manifest: dict[str, Any]) -> EndpointSlice:
    return msgspec.convert(manifest, EndpointSlice)


def test_every_router_is_asked_once_whatever_its_state_and_slices() -> None:
    starting = endpoint("10.0.0.1", "one", ready=False, serving=False)
    draining = endpoint("10.0.0.2", "two", ready=False, serving=True, terminating=True)
    slices = [
        slice_of("", "v6", endpoint("fd00::1", "one"), endpoint("fd00::3", "three"), family="IPv6"),
        slice_of("", "v4", starting, draining),
        slice_of("", "again", draining),
    ]
    assert sorted(addresses(list(map(typed, slices)))) == ["10.0.0.1:9", "10.0.0.2:9", "[fd00::3]:9"]


def test_the_port_is_that_of_metrics_if_the_service_names_none() -> None:
    nameless = slice_of("", "s", endpoint("10.0.0.1", "one"))
    nameless["ports"] = [{"name": "http", "port": 8080}]
    empty = {"metadata": {}, "addressType": "IPv4", "endpoints": None, "ports": None}

    assert list(addresses([typed(nameless)])) == ["10.0.0.1:9090"]
    assert addresses([typed(empty)]) == {}


def test_a_router_is_ready_unless_its_slice_says_no() -> None:
    unsaid, starting = endpoint("10.0.0.1", "one"), endpoint("10.0.0.2", "two", ready=False)

    assert addresses([typed(slice_of("", "s", unsaid, starting))]) == {
        "10.0.0.1:9": True,
        "10.0.0.2:9": False,
    }


@pytest.mark.parametrize("text", ["name", "/name", "namespace/", "a/b/c", ""])
def test_a_service_is_named_with_its_namespace(text: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        RouterService.parse(text)


def demand(in_flight: int, held: int, idle: float, *loads: EndpointLoad) -> DeploymentDemand:
    return DeploymentDemand("default", "m", in_flight, held, idle, loads)


def test_requests_are_summed_and_the_newest_report_of_an_engine_counts() -> None:
    first = demand(3, 2, 0.0, EndpointLoad(A, 0.9, 5.0), EndpointLoad(B, 0.7, 31.0))
    second = demand(1, 0, 0.0, EndpointLoad(A, 0.5, 1.0))
    sample = sample_of([first, second], SCALE, is_complete=True, now=7.0)
    assert sample == Sample(7.0, Load(6, 0.5), 0.0, True, is_ready=True)


def test_the_least_idle_time_counts() -> None:
    idle = [demand(0, 0, 90.0), demand(0, 0, 4.0)]
    assert sample_of(idle, SCALE, is_complete=True, now=100.0).idle_seconds == 4.0


def test_reports_are_grouped_by_deployment() -> None:
    other = DeploymentDemand("default", "other", 1, 0, 0.0)
    grouped = by_deployment([DemandReport((demand(1, 0, 0.0), other)), DemandReport((other,))])
    assert [len(grouped[Key("default", name)]) for name in ("m", "other")] == [1, 2]


def test_nothing_is_idle_while_a_router_that_may_have_requests_is_silent() -> None:
    sample = sample_of([demand(0, 0, 900.0)], SCALE, is_complete=True, may_be_idle=False, now=1000.0)

    assert sample.idle_seconds == 0.0


def test_the_last_report_of_a_silent_router_grows_old() -> None:
    report = DemandReport((demand(1, 0, 0.0, EndpointLoad(A, 0.5, 2.0)),))

    (found,) = aged(report, 60.0).deployments[0].endpoints

    assert (found.kv, found.age) == (0.5, 62.0)


class OneRouter:
    """The API server's answer to a list of slices: one router on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        ports = [{"name": METRICS_PORT_NAME, "port": self.port}]
        endpoints = [{"addresses": ["127.0.0.1"]}]
        return {"items": [{"metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}]}


class BrokenSlices:
    """The API server's answer to a list of slices, one of which is not as its API says."""

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"items": [{"metadata": {}, "endpoints": [{"addresses": "10.0.0.1"}]}]}


async def test_slices_that_cannot_be_read_leave_the_demand_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Routers(BrokenSlices(), RouterService("default", "router"))  # type: ignore[arg-type]

    async with aiohttp.ClientSession() as session:
        reports = await asked.ask(session)

    assert (reports.current, reports.is_complete) == ((), False)
    assert "cannot list the routers" in caplog.text


async def test_an_invalid_entry_of_a_page_is_dropped_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = '"in_flight": 1, "held": 0, "idle_seconds": 0.0'
    entry = '{{"namespace": "default", "name": "{}", ' + counts + ', "endpoints": [{}]}}'
    load = '{{"address": "a", "kv": {}, "age": 0.0}}'
    entries = [entry.format("good", load.format(0.5))]
    entries += [entry.format("bad", load.format(kv)) for kv in ("null", "1.7e308", "-1", "9" * 310)]

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=f'{{"deployments": [{", ".join(entries)}]}}')

    application = web.Application()
    application.router.add_get(DEMAND_PATH, page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    asked = Routers(OneRouter(runner.addresses[0][1]), RouterService("default", "router"))  # type: ignore[arg-type]
    async with aiohttp.ClientSession() as session:
        with caplog.at_level(logging.WARNING):
            (report,), is_complete, _ = await asked.ask(session)
            await asked.ask(session)
    await runner.cleanup()

    assert [demand.name for demand in report.deployments] == ["good"] and is_complete
    assert caplog.text.count("4 of its deployments have no valid demand") == 1


@pytest.mark.parametrize("key", ["", "secret"])
async def test_routers_are_asked_with_the_key_of_their_internal_pages(key: str) -> None:
    sent: list[str | None] = []

    async def page(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(text='{"deployments": []}')

    application = web.Application()
    application.router.add_get(DEMAND_PATH, page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster: Any = OneRouter(runner.addresses[0][1])
    asked = Routers(cluster, RouterService("default", "router"), lambda: key)
    await asked.reports()
    await runner.cleanup()

    assert sent == [f"Bearer {key}" if key else None]


class TwoRouters:
    """The API server's answer to a list of slices: a router that answers, and one whose readiness is given."""

    def __init__(self, port: int, dead_port: int, is_ready: bool) -> None:
        self.slices = [self.slice(port, True), self.slice(dead_port, is_ready)]

    def slice(self, port: int, is_ready: bool) -> dict[str, Any]:
        ports = [{"name": METRICS_PORT_NAME, "port": port}]
        pod = {"kind": "Pod", "name": f"router-{port}"}
        found = {"addresses": ["127.0.0.1"], "conditions": {"ready": is_ready}, "targetRef": pod}
        return {"metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": [found]}

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"items": self.slices}


async def serve(in_flight: int, may_answer: asyncio.Event | None = None) -> web.AppRunner:
    """Start the internal page of a router with so many requests for a deployment; it answers once it may."""
    report = msgspec.json.encode(DemandReport((demand(in_flight, 0, 0.0),)))

    async def page(_: web.Request) -> web.Response:
        if may_answer is not None:
            await may_answer.wait()
        return web.Response(body=report)

    application = web.Application()
    application.router.add_get(DEMAND_PATH, page)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


@pytest.mark.parametrize(
    ("silence", "is_ready", "silent", "is_complete"),
    [(30.0, True, [], False), (30.0, False, [], False), (90.0, True, [7], True), (90.0, False, [], True)],
    ids=["ready, for 30 s", "not ready, for 30 s", "ready, for 90 s", "not ready, for 90 s"],
)
async def test_a_router_that_is_silent(
    silence: float, is_ready: bool, silent: list[int], is_complete: bool
) -> None:
    alive, dying = await serve(1), await serve(7)
    ports = alive.addresses[0][1], dying.addresses[0][1]
    cluster: Any = TwoRouters(*ports, is_ready)
    asked = Routers(cluster, RouterService("default", "router"))
    async with aiohttp.ClientSession() as session:
        assert (await asked.ask(session)).is_complete
        await dying.cleanup()
        asked.heard[f"127.0.0.1:{ports[1]}"] -= silence

        reports = await asked.ask(session)
    await alive.cleanup()

    assert [one.deployments[0].in_flight for one in reports.current] == [1]
    assert [one.deployments[0].in_flight for one in reports.silent] == silent
    assert reports.is_complete == is_complete
    assert metrics.UNKNOWN_ROUTERS.collect()[0].samples[0].value == (not is_complete or bool(silent))


async def test_routers_that_are_all_gone_are_unknown() -> None:
    only = await serve(7)
    port = only.addresses[0][1]
    cluster: Any = TwoRouters(port, port, False)
    cluster.slices = cluster.slices[1:]
    asked = Routers(cluster, RouterService("default", "router"))
    async with aiohttp.ClientSession() as session:
        await asked.ask(session)
        await only.cleanup()
        asked.heard[f"127.0.0.1:{port}"] -= 90.0

        reports = await asked.ask(session)

    assert not reports.is_complete


async def test_no_router_counts_as_unknown_while_nothing_is_autoscaled() -> None:
    metrics.UNKNOWN_ROUTERS.set(1)
    cluster: Any = None
    autoscaler = Autoscaler(
        cluster, "home/lease", Scales(), Routers(cluster, RouterService("default", "router"))
    )

    running = asyncio.create_task(autoscaler.run())
    await until_async(lambda: metrics.UNKNOWN_ROUTERS.collect()[0].samples[0].value == 0)

    running.cancel()


async def test_a_list_of_routers_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "LIST_SECONDS", 0.01)
    alive = await serve(1)
    cluster: Any = TwoRouters(alive.addresses[0][1], alive.addresses[0][1], True)
    asked = Routers(cluster, RouterService("default", "router"))
    async with aiohttp.ClientSession() as session:
        await asked.ask(session)
        assert asked.listed_at is not None
        asked.listed_at -= 1.0

        async def hang(*_: Any, **__: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(cluster, "call", hang)
        reports = await asked.ask(session)
    await alive.cleanup()

    assert asked.failure.startswith("TimeoutError")
    assert [one.deployments[0].in_flight for one in reports.current] == [1]


async def test_routers_that_nobody_asked_for_a_while_are_not_silent() -> None:
    alive, dying = await serve(1), await serve(7)
    cluster: Any = TwoRouters(alive.addresses[0][1], dying.addresses[0][1], True)
    asked = Routers(cluster, RouterService("default", "router"))
    async with aiohttp.ClientSession() as session:
        await asked.ask(session)
        await dying.cleanup()
        assert asked.asked_at is not None
        asked.asked_at -= 90.0
        asked.heard = dict.fromkeys(asked.heard, asked.asked_at)

        reports = await asked.ask(session)
    await alive.cleanup()

    assert [one.deployments[0].in_flight for one in reports.current] == [1]
    assert reports.silent == ()


async def test_the_reports_for_a_scale_down_are_complete_while_nothing_is_autoscaled() -> None:
    may_answer = asyncio.Event()
    prompt, late = await serve(1), await serve(7, may_answer)
    cluster: Any = TwoRouters(prompt.addresses[0][1], late.addresses[0][1], True)
    asked = Routers(cluster, RouterService("default", "router"))

    reporting = asyncio.create_task(asked.reports())
    await until_async(lambda: asked.answers)
    asked.rest()
    may_answer.set()

    assert sorted(one.deployments[0].in_flight for one in await reporting) == [1, 7]
    await prompt.cleanup()
    await late.cleanup()
