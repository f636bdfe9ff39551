"""The page by which the operator scales deployments: requests in flight and held, idle time, KV use."""

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DEMAND_PATH, DemandReport, DeploymentDemand
from engine_server.router.demand import Demand
from engine_server.router.http.wire import Request
from engine_server.router.metrics import Metrics
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.routing.directory import Target

REQUEST = Request(b"POST", b"/v1/x", b"", {}, bytearray(), http11=True, last=False, id=b"id")


async def demand(router, name: str = "m") -> DeploymentDemand:
    async with router.internal(DEMAND_PATH) as response:
        report = msgspec.json.decode(await response.read(), type=DemandReport)
    return next(one for one in report.deployments if one.name == name)


class Gate:
    """An engine that reports its load with the head of each answer, and answers once the gate is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, engine, request, writer) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
            b"Fairlead-Load: running=1, waiting=0, room=63, kv=0.25\r\n\r\n"
        )
        await self.open.wait()
        writer.write(b"ok")


async def status_of(request) -> int:
    async with request as response:
        await response.read()
        return response.status


async def test_a_load_that_is_out_of_range_is_ignored_and_counted(start_engine, start_router):
    async def behave(engine, request, writer) -> None:
        field = b"Fairlead-Load: running=0, waiting=0, room=0, kv=%b" % (b"9" * 310)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\n\r\nok" % field)

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    assert await status_of(router.chat()) == 200

    assert (await demand(router)).endpoints == ()
    rejected = r'fairlead_router_rejected_total\{reason="out_of_range",sender="engine"\}'
    assert await router.metric(rejected) == 1


async def test_requests_are_in_flight_until_their_answers_have_ended(start_engine, start_router, eventually):
    gate = Gate()
    engine = await start_engine(gate)
    router = await start_router({"m": [engine], "other": [engine]})
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(3)]
    await eventually(lambda: len(engine.received) == 3)

    busy = await demand(router)
    assert (busy.in_flight, busy.held, busy.idle_seconds) == (3, 0, 0.0)
    assert busy.requests == {engine.url: 3}
    other = await demand(router, "other")
    assert (other.in_flight, other.requests) == (0, {})

    gate.open.set()
    assert await asyncio.gather(*requests) == [200] * 3
    idle = await demand(router)
    assert idle.in_flight == 0 and idle.idle_seconds > 0.0


async def test_reports_the_kv_use_of_engines_with_its_age(start_engine, start_router):
    gate = Gate()
    gate.open.set()
    engine = await start_engine(gate)
    router = await start_router({"m": [engine]})
    assert (await demand(router)).endpoints == ()

    await status_of(router.chat())

    (load,) = (await demand(router)).endpoints
    assert (load.address, load.kv) == (engine.url, 0.25) and load.age >= 0.0


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.booleans()), max_size=40))
def test_a_request_counts_at_the_deployment_that_its_model_means_now(steps):
    """Requests are assigned, some again to another deployment after a change of names, and end."""
    metrics, open_, meant = Metrics(), [], []
    for name, is_new in steps:
        if is_new or not open_:
            open_.append(Lifecycle(metrics, REQUEST).__enter__())
            meant.append(name)
        else:
            meant[-1] = name
        open_[-1].assign(name, Target(Key("default", name)))
        for each in "ab":
            assert metrics.demand.requests[Key("default", each)] == meant.count(each)
    for life in open_:
        life.__exit__(None, None, None)
    assert not any(metrics.demand.requests.values())


def test_a_removed_deployment_is_forgotten_once_its_last_request_has_ended():
    demand, gone = Demand(), Key("default", "gone")
    demand.begin(gone)
    demand.keep_only(())
    assert demand.requests[gone] == 1
    demand.end(gone)
    demand.keep_only(())
    assert gone not in demand.requests
