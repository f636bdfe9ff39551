"""Properties of the policies, for any load."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.least_load import LeastLoad
from engine_server.router.routing.policies.policy import Load
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.policies.round_robin import RoundRobin

KEY = RouteKey("m")


class Simulation:
    """Endpoints 0 to count - 1 with given loads, and the turns of those that were chosen."""

    def __init__(self, in_flight: list[int]) -> None:
        self.in_flight = in_flight
        self.last_used = [0] * len(in_flight)
        self.requests = 0
        self.load = Load(
            order=lambda n: (self.in_flight[n], self.last_used[n]), last_used=self.last_used.__getitem__
        )

    def commit(self, endpoint: int) -> int:
        self.requests += 1
        self.last_used[endpoint] = self.requests
        return endpoint


loads = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(st.lists(loads, min_size=1, max_size=20))
def test_least_load_picks_a_minimum(rounds):
    for in_flight in rounds:
        simulation = Simulation(in_flight)
        picked = LeastLoad().pick(KEY, range(len(in_flight)), simulation.load)
        assert in_flight[picked] == min(in_flight)


@given(st.integers(1, 8), st.integers(1, 5))
def test_least_load_gives_equally_loaded_endpoints_turns(count, rounds):
    simulation = Simulation([0] * count)
    picks = Counter(
        simulation.commit(LeastLoad().pick(KEY, range(count), simulation.load)) for _ in range(count * rounds)
    )
    assert set(picks.values()) == {rounds} and len(picks) == count


@given(st.integers(1, 8), st.integers(1, 40))
def test_round_robin_gives_every_endpoint_the_same_number_of_requests(count, requests):
    simulation = Simulation([0] * count)
    picks = Counter(
        simulation.commit(RoundRobin().pick(KEY, range(count), simulation.load)) for _ in range(requests)
    )
    assert max(picks.values()) - min(picks[n] for n in range(count)) <= 1


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(loads, st.integers(1, 10))
def test_a_choice_that_is_not_committed_changes_nothing(name, in_flight, asked):
    """A caller may ask for a second opinion, or drop a choice: no turn is lost."""
    simulation = Simulation(in_flight)
    policy = POLICIES[name]()

    picked = {policy.pick(KEY, range(len(in_flight)), simulation.load) for _ in range(asked)}

    assert len(picked) == 1


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=60))
def test_round_robin_starves_no_endpoint_while_others_come_and_go(rounds):
    """An endpoint that stays a candidate is chosen at least once in as many requests as there are endpoints."""
    simulation = Simulation([0] * 6)
    waited = Counter()
    for candidates in rounds:
        picked = simulation.commit(RoundRobin().pick(KEY, sorted(candidates), simulation.load))
        for endpoint in range(6):
            waited[endpoint] = 0 if endpoint == picked or endpoint not in candidates else waited[endpoint] + 1
        assert max(waited.values()) < 6
