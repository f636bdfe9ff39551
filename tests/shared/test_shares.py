"""Shares: never more than the limit in all, much for one owner, and something for each newcomer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine_server.shared.shares import Shares, most_of_one

LIMIT = 1000


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, LIMIT), st.integers(0, LIMIT // 8), st.booleans()),
        max_size=50,
    )
)
def test_never_exceeds_the_limit_or_what_is_to_stay_free(steps):
    shares, held = Shares(LIMIT), Counter()
    for owner, size, leaving, ends in steps:
        if ends:
            shares.release(owner, held.pop(owner, 0))
        elif shares.claim(owner, size, leaving):
            held[owner] += size
            assert size == 0 or shares.used + leaving <= LIMIT
        assert shares.used == held.total() <= LIMIT
        assert all(shares.held(one) == amount for one, amount in held.items())


@given(st.integers(1, 50))
def test_a_newcomer_finds_room_however_many_owners_take_all_that_they_get(owners):
    shares = Shares(LIMIT)
    taking = {*range(owners)}
    while taking:
        taking = {owner for owner in taking if shares.claim(owner, 1)}
    assert shares.claim("newcomer", 1)


def test_one_owner_alone_gets_four_fifths():
    shares = Shares(LIMIT)
    assert most_of_one(LIMIT) == 800
    assert shares.claim("a", 800)
    assert not shares.claim("a", 1)
    assert shares.claim("b", 100)


def test_what_returns_can_be_taken_again():
    shares = Shares(LIMIT)
    assert shares.claim("a", 800)
    shares.release("a", 800)
    assert (shares.used, shares.held("a")) == (0, 0)
    assert shares.claim("b", 800)
