"""Selection: directory, health and policy together."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.api import Key
from engine_server.router.routing.directory import Deployment, Directory
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.selection import Selector


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=6),
)
def test_picks_neither_a_tried_nor_an_ejected_endpoint(policy, states):
    async def pick_repeatedly() -> None:
        health = Health()
        directory = Directory(policy, on_added=health.add, on_removed=health.remove)
        addresses = tuple(Address("192.0.2.1", 1 + n) for n in range(len(states)))
        directory.put(Deployment(Key("n", "m"), ("m",), addresses, vouched=True))
        endpoints = directory.resolve("m").endpoints
        tried = []
        for endpoint, (live, was_tried, in_flight) in zip(endpoints, states, strict=True):
            endpoint.order = (in_flight, 0.0)
            if not live:
                health.eject(endpoint, "test")
            if was_tried:
                tried.append(endpoint)
        left = [endpoint for endpoint in endpoints if health.is_live(endpoint) and endpoint not in tried]
        selector = Selector(directory, health)

        for _ in range(len(states) + 1):
            picked = selector.pick(RouteKey("m"), tried)

            assert picked in left if left else picked is None
        directory.remove(Key("n", "m"))

    asyncio.run(pick_repeatedly())


async def test_sequential_requests_are_spread_evenly_by_every_policy(start_engine, start_router):
    engines = [await start_engine() for _ in range(4)]
    for policy in ("least_load", "round_robin"):
        router = await start_router({"m": engines}, policy=policy)
        for engine in engines:
            engine.received.clear()
        for _ in range(40):
            async with router.chat() as response:
                assert response.status == 200
        assert [len(engine.received) for engine in engines] == [10] * 4
