"""The table of names after any changes, and the cost of one change among many names."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from name_holders import holders

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim
from engine_server.router.callers.account import ANYONE, Account, usable_route
from engine_server.router.callers.keys import KeyEntry
from engine_server.router.errors import RequestError
from engine_server.router.obstacle import Obstacle
from engine_server.router.routing.directory import Adapter, Deployment, Directory
from engine_server.router.routing.name_table import NameTable

NAMES = ["a", "b", "m", "x/a", "y/m", "x/x/a"]
claims = st.builds(
    NameClaim,
    st.sampled_from([1.0, 2.0]),
    st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc")),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple),
    st.sampled_from(["", "m"]),
)


@given(st.lists(st.lists(claims, max_size=3, unique_by=lambda claim: (claim.key, claim.adapter)), max_size=8))
def test_after_any_changes_a_name_means_what_it_means_from_scratch(changes):
    table: NameTable[NameClaim] = NameTable()
    known: dict[tuple[Key, str], NameClaim] = {}
    for number, change in enumerate(changes):
        gone = [
            known.pop((claim.key, claim.adapter)) for claim in change if (claim.key, claim.adapter) in known
        ]
        added = change if number % 3 else []
        known |= {(claim.key, claim.adapter): claim for claim in added}
        table.change(gone, {claim: claim for claim in added})

        expected = holders(known.values())
        assert {name: table.get(name) for name in expected} == expected
        assert all(table.get(name) is None for name in {*NAMES, "x/b", "y/c"} - expected.keys())
        listed = {}
        for claim in known.values():
            for names in (claim.served_names, *claim.names_by_rank):
                if held := [name for name in names if expected[name] == claim]:
                    listed |= dict.fromkeys(held, claim)
                    assert list(table.listed_of(claim)) == list(dict.fromkeys(held))
                    break
        assert list(table.listed()) == sorted(listed)


@pytest.fixture
def crowded() -> Directory:
    """A directory with many models of one namespace."""
    directory = Directory("least_load", on_added=lambda *_: None, on_removed=lambda _: None)
    for number in range(100):
        directory.put(deployment(number, "many"))
    return directory


def deployment(number: int, namespace: str, reason: str = "") -> Deployment:
    adapters = tuple(Adapter(f"{namespace}-{number}-{each}") for each in range(10))
    obstacle = Obstacle(reason)
    return Deployment(Key(namespace, f"m{number}"), (f"m{number}",), obstacle=obstacle, adapters=adapters)


def test_a_change_costs_its_own_names_and_not_those_of_others(crowded, monkeypatch):
    counts = Counter()
    ranks = NameClaim.names_by_rank.fget

    def counted(claim):
        counts[claim.key.namespace] += 1
        return ranks(claim)

    monkeypatch.setattr(NameClaim, "names_by_rank", property(counted))

    crowded.put(deployment(0, "few"))
    crowded.put(deployment(0, "few", reason="changed"))
    assert crowded.resolve("few/m0") is not None
    crowded.remove(Key("few", "m0"))

    # The one whose served name is the same.
    assert counts["many"] <= 2
    assert crowded.resolve("m0").deployment.key == Key("many", "m0")


@pytest.mark.parametrize("models", [None, ("m1", "few/*")])
def test_an_unknown_model_costs_no_look_at_every_model(crowded, monkeypatch, models):
    crowded.put(deployment(0, "few"))
    caller = ANYONE if models is None else Account(KeyEntry(name="team", sha256="0" * 64, models=models))
    asked = Counter()
    resolve = Directory.resolve
    monkeypatch.setattr(
        Directory, "resolve", lambda directory, name: asked.update([name]) or resolve(directory, name)
    )
    monkeypatch.setattr(Directory, "models", lambda _: pytest.fail("lists all models"))

    with pytest.raises(RequestError, match="does not exist; available: ") as error:
        usable_route("no-such-model", caller, crowded)

    assert asked.total() <= 20
    if models is not None:
        names = [*(f"few-0-{each}" for each in range(10)), "m0", "m1"]
        assert str(error.value).endswith("available: " + ", ".join(names))
