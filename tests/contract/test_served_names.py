"""Name precedence: one total order, whatever the order in which claims become known."""

from hypothesis import given
from hypothesis import strategies as st
from llm_operator.claims import Claims

from engine_server.contract.api import Key
from engine_server.contract.served_names import NameClaim, holders
from engine_server.router.endpoints import Deployment, Directory

keys = st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc"))
served_names = st.lists(st.sampled_from(["a", "b", "m", "x/a", "y/m"]), min_size=1, max_size=3, unique=True)
claims = st.lists(
    st.builds(NameClaim, st.sampled_from([1.0, 2.0]), keys, served_names.map(tuple)),
    max_size=6,
    unique_by=lambda claim: claim.key,
)


def rank_of(name: str, claim: NameClaim) -> int:
    return next(rank for rank, names in enumerate(claim.names_by_rank) if name in names)


@given(claims)
def test_a_name_means_the_claim_of_highest_rank_and_then_the_oldest(claims):
    table = holders(claims)

    assert table.keys() == {name for claim in claims for name in claim.names}
    for name, holder in table.items():
        contenders = [claim for claim in claims if name in claim.names]
        assert holder == min(contenders, key=lambda claim: (rank_of(name, claim), claim.created, claim.key))


@given(claims, st.data())
def test_holders_do_not_depend_on_the_order_of_claims(claims, data):
    assert holders(data.draw(st.permutations(claims))) == holders(claims)


@given(claims, st.data())
def test_removing_a_claim_moves_only_the_names_that_it_held(claims, data):
    before = holders(claims)
    removed = data.draw(st.sampled_from(claims)) if claims else None

    after = holders(claim for claim in claims if claim != removed)

    kept = {name: holder for name, holder in before.items() if holder != removed}
    assert kept.items() <= after.items()


def test_names_are_served_names_then_the_deployment_then_namespaced_served_names():
    claim = NameClaim(1.0, Key("x", "a"), ("m", "a", "x/a"))

    assert claim.names_by_rank == (("m", "a", "x/a"), ("x/a",), ("x/m", "x/a", "x/x/a"))
    assert claim.names == ("m", "a", "x/a", "x/m", "x/x/a")


@given(claims)
def test_the_operator_reports_a_name_as_taken_exactly_if_the_router_sends_it_elsewhere(claims):
    directory = Directory("least_load", on_unproven=lambda _: None, on_gone=lambda _: None)
    operator = Claims()
    for claim in claims:
        directory.put(Deployment(claim.key, claim.served_names, created=claim.created))
        operator.put(claim.key, claim)

    for claim in claims:
        routed = {name: directory.resolve(name).deployment.key for name in claim.served_names}
        elsewhere = {(name, str(key)) for name, key in routed.items() if key != claim.key}
        assert set(operator.held_by_others(claim.key)) == elsewhere
