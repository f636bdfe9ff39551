"""The holders of names among LLMDeployments, after any changes, and whom a change affects."""

from hypothesis import given
from hypothesis import strategies as st
from llm_operator.control.watching.claims import Claims
from name_holders import holders

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim

NAMES = ["a", "b", "x/a", "y/b"]
KEYS = [Key(namespace, name) for namespace in "xy" for name in "abc"]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.none()
        | st.tuples(st.sampled_from([1.0, 2.0]), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)),
    ),
    max_size=20,
)


@given(CHANGES)
def test_after_any_changes_names_mean_what_they_mean_from_scratch(changes: list) -> None:  # type: ignore[type-arg]
    claims, known = Claims(), {}
    for key, content in changes:
        before = {each: claims.held_by_others(each) for each in KEYS}
        claim = None if content is None else NameClaim(content[0], key, content[1])
        known.pop(key, None)
        if claim is not None:
            known[key] = claim
        affected = claims.put(key, claim)
        table = holders(known.values())
        for each, own in known.items():
            expected = [(name, str(table[name].key)) for name in sorted(set(own.served_names))]
            assert claims.held_by_others(each) == tuple(pair for pair in expected if pair[1] != str(each))
        changed = {each for each in known if claims.held_by_others(each) != before[each]} - {key}
        assert changed <= affected <= known.keys() - {key}


def test_a_claimant_that_holds_nothing_affects_nobody() -> None:
    claims = Claims()
    for number in range(1000):
        claims.put(Key("x", f"m{number}"), NameClaim(float(number), Key("x", f"m{number}"), ("shared",)))
    last = Key("x", "m999")
    assert claims.put(last, NameClaim(999.0, last, ("other",))) == set()
    assert claims.put(last, NameClaim(999.0, last, ("shared",))) == set()
    assert len(claims.put(Key("x", "m0"), None)) == 999
