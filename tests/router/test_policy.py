"""Properties of the policies, whatever the load."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.api import Key
from engine_server.router.endpoints import Address, Deployment, Endpoint, Route
from engine_server.router.lifecycle import Lifecycle, in_flight
from engine_server.router.metrics import Metrics
from engine_server.router.policy import POLICIES, LeastLoad, RoundRobin

loads = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(st.lists(loads, min_size=1, max_size=20))
def test_least_load_picks_a_minimum(rounds):
    policy = LeastLoad()
    for load in rounds:
        assert load[policy.pick(range(len(load)), load.__getitem__)] == min(load)


@given(st.integers(1, 8), st.integers(1, 5))
def test_equals_take_turns_under_least_load(count, rounds):
    policy = LeastLoad()
    picks = Counter(policy.pick(range(count), lambda _: 0) for _ in range(count * rounds))
    assert set(picks.values()) == {rounds} and len(picks) == count


@given(st.integers(1, 8), st.integers(1, 40))
def test_round_robin_is_fair(count, requests):
    policy = RoundRobin()
    picks = Counter(policy.pick(range(count), lambda _: 0) for _ in range(requests))
    assert max(picks.values()) - min(picks[n] for n in range(count)) <= 1


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6),
    st.data(),
)
def test_neither_a_tried_nor_an_ejected_endpoint_is_picked(name, states, data):
    endpoints = tuple(Endpoint(Address("h", port), live) for port, (live, _) in enumerate(states))
    for endpoint in endpoints:
        endpoint.in_flight = data.draw(st.integers(0, 3))
    tried = [e for e, (_, was_tried) in zip(endpoints, states, strict=True) if was_tried]
    left = [e for e in endpoints if e.live and e not in tried]
    route = Route(Deployment(Key("n", "m"), ("m",)), POLICIES[name](), endpoints)
    for _ in range(len(states) + 1):
        picked = route.pick(in_flight, tried)
        assert picked in left if left else picked is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["leave", "visit", "break"])), max_size=50))
def test_every_way_out_is_counted_down(steps):
    """Requests overlap, move between endpoints, end and break: what is under way is what has not left."""
    metrics, endpoints = Metrics(), [Endpoint(Address("h", port), True) for port in range(4)]
    open_: list[Lifecycle] = []
    for number, (at, what) in enumerate(steps):
        if what == "visit" or not open_:
            life = Lifecycle(metrics).__enter__() if number % 2 or not open_ else open_.pop()
            life.visit(endpoints[at])
            open_.append(life)
        elif what == "leave":
            open_.pop(at % len(open_)).__exit__(None, None, None)
        else:
            open_.pop().__exit__(OSError, OSError(), None)
        assert metrics.in_flight == sum(e.in_flight for e in endpoints) == len(open_)
    for life in open_:
        life.__exit__(None, None, None)
    assert metrics.in_flight == 0 and not any(e.in_flight for e in endpoints)
