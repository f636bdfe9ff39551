"""Selection: directory, health and policy together."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.policies import DEFAULT_POLICY
from engine_server.router.routing import selection
from engine_server.router.routing.directory import Adapter, Deployment, Directory
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.selection import Selector
from engine_server.router.routing.verdict import Kind, Verdict

HOUR = 3600.0


@pytest.fixture(scope="module", autouse=True)
def endpoints_lack_an_adapter_for_longer_than_a_test():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "LACKING_SECONDS", HOUR)
        yield


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=6),
)
def test_picks_neither_a_tried_nor_an_ejected_nor_a_full_endpoint(policy, states):
    async def pick_repeatedly() -> None:
        health = Health()
        directory = Directory(policy, on_added=health.add, on_removed=health.remove)
        addresses = tuple(Address("192.0.2.1", 1 + n) for n in range(len(states)))
        directory.put(Deployment(Key("n", "m"), ("m",), addresses, vouched=True))
        endpoints = directory.resolve("m").endpoints
        selector = Selector(health)
        tried, full = [], []
        for endpoint, (live, was_tried, is_full, in_flight) in zip(endpoints, states, strict=True):
            for _ in range(in_flight):
                endpoint.count(0.0, 0)
            if is_full:
                full.append(endpoint)
                selector.apply(Verdict(Kind.FULL, seconds=HOUR), endpoint, directory.resolve("m"))
            if not live:
                health.eject(endpoint, "test")
            if was_tried:
                tried.append(endpoint)
        live_endpoints = [endpoint for endpoint in endpoints if health.is_live(endpoint)]
        left = [endpoint for endpoint in live_endpoints if endpoint not in tried and endpoint not in full]
        all_full = bool(live_endpoints) and set(full) >= set(live_endpoints)

        for _ in range(len(states) + 1):
            picked = selector.pick(directory.resolve("m"), RouteKey("m"), tried)

            assert picked.endpoint in left if left else picked is None
        assert (selector.seconds_until_room(directory.resolve("m")) is not None) == all_full
        directory.remove(Key("n", "m"))

    asyncio.run(pick_repeatedly())


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(*[st.booleans()] * 5), max_size=6),
)
def test_picks_no_endpoint_without_the_adapter(policy, states):
    async def pick_repeatedly() -> None:
        health = Health()
        directory = Directory(policy, on_added=health.add, on_removed=health.remove)
        addresses = tuple(Address("192.0.2.1", 1 + n) for n in range(len(states)))
        having = tuple(one for one, (has, *_) in zip(addresses, states, strict=True) if has)
        adapter = Adapter("a", (*having, Address("192.0.2.9", 1)))
        directory.put(Deployment(Key("n", "m"), ("m",), addresses, vouched=True, adapters=(adapter,)))
        route, selector, tried = directory.resolve("a"), Selector(health), []
        left, lacking = [], []
        for endpoint, (has, live, was_tried, lacks, same) in zip(
            directory.resolve("m").endpoints, states, strict=True
        ):
            endpoint.fingerprints = {"": b"other", "a": b"model" if same else b"other"}
            if not live:
                health.eject(endpoint, "test")
            if was_tried:
                tried.append(endpoint)
            if has and lacks:
                selector.apply(Verdict(Kind.LACKING), endpoint, route)
                lacking.append(endpoint)
            if has and live and same and not was_tried:
                left.append(endpoint)
        knowing = [endpoint for endpoint in route.endpoints if endpoint not in lacking]
        if knowing or tried:
            left = [endpoint for endpoint in left if endpoint not in lacking]

        for _ in range(len(states) + 1):
            key = RouteKey("a", prefix="p", session="s")
            picked = selector.pick(route, key, tried, b"model")

            assert picked.endpoint in left if left else picked is None
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


async def test_all_turns_of_a_conversation_go_to_one_engine_by_default(start_engine, start_router):
    engines = [await start_engine() for _ in range(4)]
    router = await start_router({"m": engines}, policy=DEFAULT_POLICY)
    for conversation in range(20):
        messages = [{"role": "system", "content": "You are helpful."}]
        for engine in engines:
            engine.received.clear()
        for turn in range(3):
            messages.append({"role": "user", "content": f"Question {turn} of {conversation}"})
            async with router.chat(messages=messages) as response:
                assert response.status == 200
            messages.append({"role": "assistant", "content": "An answer"})

        assert sorted(len(engine.received) for engine in engines) == [0, 0, 0, 3]


@pytest.mark.parametrize(("policy", "headers"), [("session", {"X-Session-Id": "s"}), ("least_load", {})])
async def test_requests_of_a_session_go_to_one_engine_with_its_policy_alone(
    start_engine, start_router, policy, headers
):
    engines = [await start_engine() for _ in range(4)]
    router = await start_router({"m": engines}, policy=policy)
    for number in range(8):
        body = {"model": "m", "prompt": f"prompt {number}"}
        async with router.session.post(
            f"{router.url}/v1/completions", json=body, headers=headers
        ) as response:
            assert response.status == 200

    used = sum(bool(engine.received) for engine in engines)
    assert used == (1 if policy == "session" else 4)
