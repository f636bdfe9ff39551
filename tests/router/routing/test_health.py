"""Health: endpoints take requests once, and as long as, they are ready."""

import logging

import pytest
from waiting import PATIENCE

from engine_server.contract.cluster.api import Key
from engine_server.router.routing import health as health_module
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.health import BURST, Health, ProbeTimes, probe

FAST = ProbeTimes(shortest=0.001, longest=0.01, longest_urgent=0.005)
KEY = Key("default", "m")


@pytest.fixture
def intervals(monkeypatch) -> list[float]:
    """Replace the jittered intervals before probes by none, and return those that were asked for."""
    asked: list[float] = []

    def record(interval: float) -> float:
        asked.append(interval)
        return 0.0

    monkeypatch.setattr(health_module, "jittered", record)
    return asked


def follow(health: Health, count: int) -> list[Endpoint]:
    """Return live endpoints that refuse connections."""
    endpoints = [Endpoint(KEY, Address("127.0.0.1", 1 + n)) for n in range(count)]
    for endpoint in endpoints:
        health.add(endpoint, live=True)
    return endpoints


async def test_an_endpoint_gets_requests_once_its_readiness_probe_succeeds(
    start_engine, start_router, eventually
):
    engine = await start_engine(ready=False)
    router = await start_router({"m": [engine]})
    await eventually(lambda: engine.probes > 1)
    assert not engine.received
    engine.ready = True

    async def answered() -> bool:
        async with router.chat() as response:
            return response.status == 200

    await eventually(answered)


async def test_an_ejected_endpoint_is_live_again_once_it_is_ready(start_engine, eventually):
    engine = await start_engine(ready=False)
    health = Health(FAST)
    endpoint = Endpoint(KEY, Address.parse(engine.url))
    health.add(endpoint, live=True)

    health.eject(endpoint, "test")
    health.eject(endpoint, "test")

    assert not health.is_live(endpoint) and health.ejections.total() == 1
    engine.ready = True
    await eventually(lambda: health.is_live(endpoint))


async def test_logs_one_line_for_each_change_of_state(start_engine, eventually, caplog):
    caplog.set_level(logging.INFO, health_module.__name__)
    engine = await start_engine(ready=False)
    health = Health(FAST)
    endpoint = Endpoint(KEY, Address.parse(engine.url))
    health.add(endpoint, live=True)

    for _ in range(3):
        health.eject(endpoint, "connection refused")
        health.suspect(endpoint, "it answered 503")
    await eventually(lambda: engine.probes > 3)
    engine.ready = True
    await eventually(lambda: health.is_live(endpoint))

    assert [record.getMessage() for record in caplog.records] == [
        f"ejected endpoint {engine.url} of default/m: connection refused",
        f"endpoint {engine.url} of default/m is ready",
    ]


async def test_does_not_probe_an_endpoint_that_was_removed(start_engine):
    """An answer may fail after its endpoint has left the directory."""
    health = Health()
    endpoint = Endpoint(KEY, Address.parse((await start_engine()).url))
    health.add(endpoint, live=True)
    health.remove(endpoint)

    health.eject(endpoint, "test")

    assert not health.down and health.ejections.total() == 0 and not health.is_live(endpoint)


async def test_intervals_between_failed_probes_double_up_to_the_longest(start_engine, intervals, eventually):
    engine = await start_engine(ready=False)
    health = Health(ProbeTimes(shortest=1.0, longest=10.0))
    endpoint = Endpoint(KEY, Address.parse(engine.url))
    health.add(endpoint, live=True)
    follow(health, 1)

    health.eject(endpoint, "test")
    await eventually(lambda: len(intervals) >= 6)

    assert intervals[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    health.remove(endpoint)


async def test_the_interval_grows_with_each_ejection_of_an_endpoint_that_is_always_ready(
    start_engine, intervals, eventually
):
    """It flaps: its readiness says nothing of how it answers requests."""
    health = Health(ProbeTimes(shortest=1.0, longest=10.0))
    endpoint = Endpoint(KEY, Address.parse((await start_engine()).url))
    health.add(endpoint, live=True)
    follow(health, 1)

    for _ in range(6):
        health.eject(endpoint, "test")
        await eventually(lambda: health.is_live(endpoint))

    assert intervals == pytest.approx([1.0, 2.0, 4.0, 8.0, 10.0, 10.0], rel=0.05)


async def test_probes_soon_while_no_endpoint_of_the_deployment_is_live(intervals, eventually):
    health = Health(ProbeTimes(shortest=1.0, longest=64.0, longest_urgent=2.0))
    one, two = follow(health, 2)
    health.eject(one, "test")
    await eventually(lambda: 64.0 in intervals)

    intervals.clear()
    health.eject(two, "test")
    await eventually(lambda: len(intervals) >= 8)

    assert max(intervals) == 2.0
    health.remove(one)
    health.remove(two)


def test_intervals_are_spread_around_their_mean():
    drawn = [health_module.jittered(10.0) for _ in range(100)]
    assert len(set(drawn)) > 50
    assert all(8.0 <= interval <= 12.0 for interval in drawn)


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
async def test_suspicion_never_ejects_more_than_half_of_a_deployment(count, most):
    health = Health()
    endpoints = follow(health, count)

    for endpoint in endpoints:
        for _ in range(2 * BURST):
            health.record_failure(endpoint, "it answered 500")

    assert len(health.down) == most
    for endpoint in endpoints:
        health.remove(endpoint)


async def test_refused_connections_eject_every_endpoint_of_a_deployment(start_engine, start_router):
    engines = [await start_engine() for _ in range(3)]
    router = await start_router({"m": engines})
    for engine in engines:
        await engine.stop()
    async with router.chat() as response:
        assert response.status == 503
    assert await router.metric(r"fairlead_router_endpoint_live\{.*\}") == 0


async def test_another_deployment_does_not_count_as_half():
    health = Health()
    (endpoint,) = follow(health, 1)
    other = Endpoint(Key("default", "other"), endpoint.address)
    health.add(other, live=True)

    health.suspect(endpoint, "test")

    assert health.is_live(endpoint) and health.is_live(other)


async def test_an_endpoint_that_fails_again_after_its_return_is_ejected_at_its_first_failure(
    start_engine, eventually
):
    health = Health(FAST)
    endpoint = Endpoint(KEY, Address.parse((await start_engine()).url))
    health.add(endpoint, live=True)
    follow(health, 1)
    for _ in range(BURST):
        health.record_failure(endpoint, "it answered 500")
    await eventually(lambda: health.is_live(endpoint))

    health.record_failure(endpoint, "it answered 500")

    assert not health.is_live(endpoint)
    health.remove(endpoint)


async def test_a_probe_distinguishes_an_answer_from_none(start_engine):
    ready, unready = await start_engine(), await start_engine(ready=False)
    mute, gone = await start_engine(), await start_engine()
    mute.mute = True
    await gone.stop()
    assert await probe(Address.parse(mute.url), 0.1) is None
    statuses = [await probe(Address.parse(engine.url), PATIENCE) for engine in (ready, unready, gone)]
    assert statuses == [200, 503, 0]
