"""Name precedence: one total order, whatever the order in which claims become known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.control.watching.claims import Claims
from name_holders import holders

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim, is_foreign
from engine_server.router.routing.directory import Deployment, Directory

keys = st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc"))
served_names = st.lists(st.sampled_from(["a", "b", "m", "x/a", "y/m"]), min_size=1, max_size=3, unique=True)
ages = st.sampled_from([1.0, 2.0])
claims = st.lists(
    st.builds(NameClaim, ages, keys, served_names.map(tuple), st.just("")),
    max_size=6,
    unique_by=lambda claim: claim.key,
)
adapters = st.builds(
    lambda age, key, name: NameClaim(age, key, (name,), name), ages, keys, st.sampled_from(["a", "m", "x/a"])
)
all_claims = st.builds(
    lambda models, adapters: [*models, *adapters],
    claims,
    st.lists(adapters, max_size=4, unique_by=lambda claim: (claim.key, claim.adapter)),
)


def rank_of(name: str, claim: NameClaim) -> int:
    return next(rank for rank, names in enumerate(claim.names_by_rank) if name in names)


@given(all_claims)
def test_a_name_means_the_claim_of_highest_rank_and_then_the_oldest(claims):
    table = holders(claims)

    assert table.keys() == {name for claim in claims for name in claim.names}
    for name, holder in table.items():
        contenders = [claim for claim in claims if name in claim.names]
        assert holder == min(contenders, key=lambda claim: (rank_of(name, claim), *claim.seniority))


@given(all_claims, st.data())
def test_holders_do_not_depend_on_the_order_of_claims(claims, data):
    assert holders(data.draw(st.permutations(claims))) == holders(claims)


@given(all_claims, st.data())
def test_removing_a_claim_moves_only_the_names_that_it_held(claims, data):
    before = holders(claims)
    removed = data.draw(st.sampled_from(claims)) if claims else None

    after = holders(claim for claim in claims if claim != removed)

    kept = {name: holder for name, holder in before.items() if holder != removed}
    assert kept.items() <= after.items()


def test_the_deployment_outranks_namespaced_served_names_which_outrank_served_names():
    claim = NameClaim(1.0, Key("x", "a"), ("m", "a", "x/a"))

    assert claim.names_by_rank == (("x/a",), ("x/m", "x/a", "x/x/a"), ("m", "a", "x/a"))


def test_an_engine_gets_its_served_names_first():
    claim = NameClaim(1.0, Key("x", "a"), ("m", "a", "x/a"))

    assert claim.names == ("m", "a", "x/a", "x/m", "x/x/a")


def test_an_adapter_is_reached_by_its_name_and_by_that_of_its_namespace_but_gives_way_to_its_model():
    model, adapter = NameClaim(1.0, Key("x", "a"), ("m",)), NameClaim(1.0, Key("x", "a"), ("b",), "b")
    alike = NameClaim(1.0, Key("x", "a"), ("m",), "m")

    table = holders([alike, adapter, model])

    assert adapter.names == ("b", "x/b")
    assert {name for name, claim in table.items() if claim == adapter} == {"b", "x/b"}
    assert alike not in table.values()


@given(claims)
def test_a_name_in_a_namespace_is_never_held_from_outside_while_the_namespace_claims_it(claims):
    table = holders(claims)

    for claim in claims:
        for name in (str(claim.key), *(f"{claim.key.namespace}/{served}" for served in claim.served_names)):
            assert table[name].key.namespace == claim.key.namespace


@pytest.mark.parametrize(
    "served_name",
    [
        "m",
        "x/a",
        "Qwen/Qwen3-0.6B",
        "deepseek-ai/DeepSeek-R1",
        "qwen/qwen2.5-7b",
        "Org/b",
        "openai/gpt-oss-20b",
    ],
)
def test_a_deployment_may_claim_a_name_that_is_its_own_or_cannot_be_another_objects(served_name):
    assert not is_foreign(served_name, Key("x", "a"), {"openai"})


@pytest.mark.parametrize(
    "served_name", ["x/b", "y/a", "google/gemma-3-4b-it", "/", "/A", "A/", "x/A/b", "A/b/c"]
)
def test_a_name_that_could_be_another_objects_namespace_and_name_is_foreign(served_name):
    assert is_foreign(served_name, Key("x", "a"), {"openai"})


@given(claims)
def test_the_operator_reports_a_name_as_taken_exactly_if_the_router_sends_it_elsewhere(claims):
    directory = Directory("least_load", on_added=lambda *_: None, on_removed=lambda _: None)
    operator = Claims()
    for claim in claims:
        directory.put(Deployment(claim.key, claim.served_names, created=claim.created))
        operator.put(claim.key, claim)

    for claim in claims:
        routed = {name: directory.resolve(name).deployment.key for name in claim.served_names}
        elsewhere = {(name, str(key)) for name, key in routed.items() if key != claim.key}
        assert set(operator.held_by_others(claim.key)) == elsewhere


@given(claims, st.data())
def test_a_change_of_claims_wakes_every_deployment_whose_taken_names_it_changes(claims, data):
    operator = Claims()
    for claim in claims:
        operator.put(claim.key, claim)
    before = {claim.key: operator.held_by_others(claim.key) for claim in claims}
    changed = data.draw(st.sampled_from(claims)) if claims else NameClaim(1.0, Key("x", "a"), ("m",))
    renamed = data.draw(
        st.none() | served_names.map(lambda names: changed._replace(served_names=tuple(names)))
    )

    woken = operator.put(changed.key, renamed)

    others = [claim.key for claim in claims if claim.key != changed.key]
    assert {key for key in others if operator.held_by_others(key) != before[key]} <= woken
