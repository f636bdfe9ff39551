"""Which entries a bounded map keeps."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.base.bounded_map import BoundedMap

LIMIT = 100
KEYS = "abcdef"


def size_of(key: str, value: str) -> int:
    return len(key) + len(value)


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 120), st.booleans()), max_size=40))
def test_the_entries_that_were_used_last_and_fit_are_kept(steps: list[tuple[str, int, bool]]) -> None:
    kept, expected = BoundedMap[str, str](LIMIT, size_of), dict[str, str]()
    for key, length, drops in steps:
        expected.pop(key, None)
        if drops:
            kept.pop(key)
        else:
            kept.keep(key, "x" * length)
            if length < LIMIT:
                expected[key] = "x" * length
            while sum(map(size_of, expected, expected.values())) > LIMIT:
                del expected[next(iter(expected))]
        found = {one: kept.find(one) for one in KEYS}  # which uses all that are kept, in this order
        assert {one: value for one, value in found.items() if value is not None} == expected
        assert len(kept) == len(expected)
        assert kept.used == sum(map(size_of, expected, expected.values()))
        expected = dict(sorted(expected.items()))


def test_limit_without_sizes_is_a_number_of_entries() -> None:
    kept = BoundedMap[str, int](2)
    kept.keep("a", 0)
    kept.keep("b", 1)
    assert kept.find("a") == 0
    kept.keep("c", 2)
    assert [kept.find(key) for key in "abc"] == [0, None, 2]
