"""Token ids as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.requests.token_bytes import all_below, pack, unpack


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_ids_are_those_that_were_packed(token_ids: list[int]) -> None:
    assert unpack(pack(token_ids)) == token_ids


def test_bytes_that_are_no_whole_number_of_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack(pack([1, 2])[:-1])


@given(st.integers(1, 1 << 31), st.lists(st.integers(-2, 5) | st.integers()))
def test_limit_holds_for_all_or_not(limit: int, token_ids: list[int]) -> None:
    assert all_below(limit, token_ids) == all(0 <= token_id < limit for token_id in token_ids)
