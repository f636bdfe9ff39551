"""Properties of the policies, for any load."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.policies import PolicyName
from engine_server.router.routing.endpoint import BYTES_PER_REQUEST, RAMP_SECONDS, Address, Endpoint
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.least_load import MOST_COMPARED, LeastLoad
from engine_server.router.routing.policies.prefix import Prefix
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.routing.policies.ring import LOAD_FACTOR, SPARE_LOAD, Ring
from engine_server.router.routing.policies.round_robin import RoundRobin
from engine_server.router.routing.policies.session import Session

START = 1000.0
NO_PROMPT = RouteKey("m")


def new_endpoint(number: int, in_flight: int = 0, started: float = START) -> Endpoint:
    """Return an endpoint with so many requests in flight, the last of which was sent when it started."""
    endpoint = Endpoint(Key("n", "m"), Address("192.0.2.1", 1 + number))
    endpoint.begin_ramp(started)
    for _ in range(in_flight):
        endpoint.count(started, 0)
    return endpoint


def new_endpoints(in_flight: list[int]) -> list[Endpoint]:
    return [new_endpoint(number, count) for number, count in enumerate(in_flight)]


def settled(seconds: float = 0.0) -> float:
    """Return a time at which all endpoints have their full share."""
    return START + RAMP_SECONDS + seconds


loads = st.lists(st.integers(0, 5), min_size=1, max_size=8)
prefixes = st.text(min_size=1, max_size=5)
keys = st.builds(RouteKey, st.just("m"), prefix=st.text(max_size=3), session=st.text(max_size=3))


@given(loads, keys)
def test_least_load_picks_a_minimum(in_flight, key):
    endpoints = new_endpoints(in_flight)

    picked = LeastLoad(endpoints).pick(key, endpoints, settled()).endpoint

    assert picked.in_flight == min(in_flight)


@given(st.integers(1, 8), st.integers(1, 5))
def test_least_load_gives_equally_loaded_endpoints_turns(count, rounds):
    endpoints = new_endpoints([0] * count)
    policy = LeastLoad(endpoints)
    picks: Counter[Endpoint] = Counter()
    for second in range(count * rounds):
        picked = policy.pick(NO_PROMPT, endpoints, settled(second)).endpoint
        picked.count(settled(second), 0)
        picked.release(0)
        picks[picked] += 1

    assert set(picks.values()) == {rounds} and len(picks) == count


@given(st.integers(MOST_COMPARED + 1, 40), st.integers(0, 39))
def test_least_load_never_picks_the_only_loaded_one_of_many_endpoints(count, loaded):
    endpoints = new_endpoints([0] * count)
    endpoints[loaded % count].count(START, 0)

    picked = LeastLoad(endpoints).pick(NO_PROMPT, endpoints, settled()).endpoint

    assert picked is not endpoints[loaded % count]


def test_least_load_spreads_requests_over_many_endpoints():
    endpoints = new_endpoints([0] * 40)
    policy = LeastLoad(endpoints)
    for _ in range(4000):
        policy.pick(NO_PROMPT, endpoints, settled()).endpoint.count(settled(), 0)

    # One of two choices is a maximum about log log n above the mean; one random choice would be about 125.
    assert max(endpoint.in_flight for endpoint in endpoints) <= 110


def test_a_long_prompt_counts_as_load_until_its_first_token():
    short, long = endpoints = new_endpoints([0, 0])
    short.count(START, 0)
    long.count(START, BYTES_PER_REQUEST)
    policy = LeastLoad(endpoints)

    before = policy.pick(NO_PROMPT, endpoints, settled()).endpoint
    long.record_first_token(BYTES_PER_REQUEST)
    short.count(START, 0)
    after = policy.pick(NO_PROMPT, endpoints, settled()).endpoint

    assert (before, after) == (short, long)


@given(st.integers(1, 8), st.integers(1, 40))
def test_round_robin_gives_every_endpoint_the_same_number_of_requests(count, requests):
    endpoints = new_endpoints([0] * count)
    policy = RoundRobin(endpoints)
    picks = Counter(dict.fromkeys(endpoints, 0))
    for second in range(requests):
        picked = policy.pick(NO_PROMPT, endpoints, settled(second)).endpoint
        picked.count(settled(second), 0)
        picks[picked] += 1

    assert max(picks.values()) - min(picks.values()) <= 1


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=60))
def test_round_robin_starves_no_endpoint_while_others_come_and_go(rounds):
    """An endpoint that stays a candidate is chosen at least once in as many requests as there are endpoints."""
    endpoints = new_endpoints([0] * 6)
    policy = RoundRobin(endpoints)
    waited: Counter[int] = Counter()
    for second, candidates in enumerate(rounds):
        picked = policy.pick(NO_PROMPT, [endpoints[n] for n in sorted(candidates)], settled(second)).endpoint
        picked.count(settled(second), 0)
        for number, endpoint in enumerate(endpoints):
            passed_over = endpoint is not picked and number in candidates
            waited[number] = waited[number] + 1 if passed_over else 0
        assert max(waited.values()) < 6


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(loads, keys, st.integers(1, 10))
def test_a_choice_that_is_not_committed_changes_nothing(name, in_flight, key, asked):
    """A caller may ask for a second opinion, or drop a choice: no turn is lost."""
    endpoints = new_endpoints(in_flight)
    policy = POLICIES[name](endpoints)

    picked = {policy.pick(key, endpoints, settled()) for _ in range(asked)}

    assert len(picked) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(loads, st.sets(st.integers(0, 7), min_size=1), keys, st.floats(0.0, 2 * RAMP_SECONDS))
def test_every_policy_picks_a_candidate(name, in_flight, chosen, key, age):
    endpoints = new_endpoints(in_flight)
    candidates = [endpoint for number, endpoint in enumerate(endpoints) if number in chosen]
    assume(candidates)

    assert POLICIES[name](endpoints).pick(key, candidates, START + age).endpoint in candidates


def test_there_is_a_policy_of_every_name_that_an_llmdeployment_may_have():
    assert set(POLICIES) == set(get_args(PolicyName))


# The ring


@given(st.integers(2, 8), st.lists(st.tuples(prefixes, st.booleans()), max_size=200))
def test_prefix_never_exceeds_the_bound_of_load(count, requests):
    """Whatever the keys are, even a single one, and however requests end."""
    endpoints = new_endpoints([0] * count)
    policy = Prefix(endpoints)
    for prefix, ends in requests:
        picked = policy.pick(RouteKey("m", prefix=prefix), endpoints, settled()).endpoint
        total = sum(endpoint.in_flight for endpoint in endpoints)

        assert picked.in_flight <= LOAD_FACTOR * (total + 1) / count + SPARE_LOAD

        picked.count(settled(), 0)
        if ends:
            max(endpoints, key=lambda endpoint: endpoint.in_flight).release(0)


def test_prefix_spreads_one_key_over_all_endpoints_under_load():
    endpoints = new_endpoints([0] * 4)
    policy = Prefix(endpoints)
    for _ in range(400):
        policy.pick(RouteKey("m", prefix="p"), endpoints, settled()).endpoint.count(settled(), 0)

    assert all(0 < endpoint.in_flight <= LOAD_FACTOR * 100 + SPARE_LOAD + 1 for endpoint in endpoints)


def test_prompts_without_a_scope_keep_their_places_in_the_ring():
    """Routers of two releases that run side by side choose the same endpoints."""
    endpoints = new_endpoints([0] * 8)
    ring, policy = Ring(endpoints), Prefix(endpoints)
    for number in range(50):
        text = f"prompt {number}"
        picked = policy.pick(RouteKey("m", prefix=text), endpoints, settled())
        assert picked.endpoint is ring.pick(f"m\n{text}", endpoints, settled()).endpoint


@given(st.integers(2, 6), st.lists(prefixes, min_size=1, max_size=50, unique=True))
def test_only_the_keys_of_an_endpoint_move_when_it_goes_or_comes(count, texts):
    endpoints = new_endpoints([0] * count)
    gone = endpoints[0]
    all_policy, fewer_policy = Prefix(endpoints), Prefix(endpoints[1:])
    for text in texts:
        key = RouteKey("m", prefix=text)
        before = all_policy.pick(key, endpoints, settled()).endpoint

        after = fewer_policy.pick(key, endpoints[1:], settled()).endpoint

        assert after is before or before is gone


@given(st.integers(2, 6), prefixes)
def test_an_endpoint_that_is_out_moves_its_keys_to_where_they_go_once_it_is_gone(count, text):
    endpoints = new_endpoints([0] * count)
    key = RouteKey("m", prefix=text)

    assert (
        Prefix(endpoints).pick(key, endpoints[1:], settled()).endpoint
        is Prefix(endpoints[1:]).pick(key, endpoints[1:], settled()).endpoint
    )


@pytest.mark.parametrize(
    ("policy", "key"), [(Prefix, RouteKey("m", prefix="p")), (Session, RouteKey("m", session="s"))]
)
def test_a_ring_says_whether_it_chose_the_keys_own_endpoint(policy, key):
    endpoints = new_endpoints([0] * 3)
    ring = policy(endpoints)

    own = ring.pick(key, endpoints, settled())
    others = [endpoint for endpoint in endpoints if endpoint is not own.endpoint]
    spilled = ring.pick(key, others, settled())

    assert own.is_own is True
    assert spilled.is_own is False and spilled.endpoint in others


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(loads, keys)
def test_a_policy_without_a_ring_never_says_whether_an_endpoint_is_the_keys_own(name, in_flight, key):
    policy = POLICIES[name](endpoints := new_endpoints(in_flight))

    choice = policy.pick(key, endpoints, settled())

    assert choice.is_own is None or policy.has_ring


@given(st.permutations(range(6)), keys)
def test_two_routers_agree_on_the_endpoint_of_a_key(order, key):
    assume(key.prefix or key.session)
    ours = new_endpoints([0] * 6)
    theirs = [new_endpoint(number) for number in order]
    for policy in (Prefix, Session):
        if policy is Prefix and not key.prefix:
            continue
        here = policy(ours).pick(key, ours, settled()).endpoint
        there = policy(theirs).pick(key, theirs, settled()).endpoint

        assert here.address == there.address


def test_a_ring_gives_each_endpoint_about_the_same_number_of_keys():
    endpoints = new_endpoints([0] * 4)
    policy = Prefix(endpoints)

    keys_by_endpoint = Counter(
        policy.pick(RouteKey("m", prefix=f"prompt {n}"), endpoints, settled()).endpoint for n in range(4000)
    )

    assert all(800 <= keys <= 1200 for keys in keys_by_endpoint.values())


def test_session_keeps_a_session_together_and_sends_other_requests_by_prefix():
    endpoints = new_endpoints([0] * 8)
    session, prefix = Session(endpoints), Prefix(endpoints)

    picks = {
        session.pick(RouteKey("m", prefix=f"prompt {n}", session="s"), endpoints, settled()).endpoint
        for n in range(50)
    }

    assert len(picks) == 1
    for n in range(50):
        key = RouteKey("m", prefix=f"prompt {n}")
        assert (
            session.pick(key, endpoints, settled()).endpoint
            is prefix.pick(key, endpoints, settled()).endpoint
        )


# New endpoints


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("age", [0.0, RAMP_SECONDS / 2])
def test_a_new_endpoint_gets_a_smaller_share_at_first(name, age):
    old = [new_endpoint(number, started=START - RAMP_SECONDS) for number in range(3)]
    new = new_endpoint(3)
    endpoints = [*old, new]
    policy = POLICIES[name](endpoints)
    for n in range(200):  # in less than a thousandth of the ramp
        now = START + age + n * RAMP_SECONDS / 1e6
        policy.pick(
            RouteKey("m", prefix=f"prompt {n}", session=f"session {n}"), endpoints, now
        ).endpoint.count(now, 0)

    share = new.share(START + age)
    most = (LOAD_FACTOR * 200 + SPARE_LOAD * 4) / (3 + share)
    assert new.in_flight <= most * share + 1
    assert max(endpoint.in_flight for endpoint in old) <= most + 1


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(loads, keys, st.sampled_from([1, 2, 4, 8]))
def test_a_ramp_changes_nothing_where_all_endpoints_are_new(name, in_flight, key, eighths):
    age = eighths / 8 * RAMP_SECONDS  # shares are exact, as is the comparison with the bound
    young = new_endpoints(in_flight)
    old = [
        new_endpoint(number, count, started=START - 2 * RAMP_SECONDS)
        for number, count in enumerate(in_flight)
    ]

    picked = POLICIES[name](young).pick(key, young, START + age).endpoint

    assert picked.address == POLICIES[name](old).pick(key, old, START + age).endpoint.address
