"""What is kept in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.pictures.kept import Kept

LIMIT = 100
DIGESTS = "abcdef"


@given(st.lists(st.tuples(st.sampled_from(DIGESTS), st.integers(0, 120), st.booleans()), max_size=40))
def test_the_values_that_were_used_last_and_fit_are_kept(steps: list[tuple[str, int, bool]]) -> None:
    kept, expected = Kept[str](LIMIT, len), dict[str, str]()
    for digest, size, drops in steps:
        expected.pop(digest, None)
        if drops:
            kept.pop(digest)
        else:
            kept.keep(digest, "x" * size)
            if size <= LIMIT:
                expected[digest] = "x" * size
            while sum(map(len, expected.values())) > LIMIT:
                del expected[next(iter(expected))]
        found = {one: kept.find(one) for one in DIGESTS}  # which uses all that are kept, in this order
        assert {one: value for one, value in found.items() if value is not None} == expected
        expected = dict(sorted(expected.items()))
