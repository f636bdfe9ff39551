"""What is kept of processed pictures until the core asks for it."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.pictures.kept_inputs import KeptInputs, size_of
from engine_server.requests.messages import RawTensor
from engine_server.requests.pictures import ProcessedPicture

LIMIT = 100


def picture(size: int) -> ProcessedPicture:
    return ProcessedPicture("<image>", {"pixel_values": RawTensor("uint8", [size], bytes(size))})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 120), st.booleans()), max_size=40))
def test_the_newest_pictures_that_fit_are_kept(steps: list[tuple[int, int, bool]]) -> None:
    kept, expected = KeptInputs(LIMIT), dict[bytes, ProcessedPicture]()
    for number, size, drops in steps:
        digest = bytes([number])
        expected.pop(digest, None)
        if drops:
            kept.pop(digest)
        else:
            kept.keep(digest, picture(size))
            if size <= LIMIT:
                expected[digest] = picture(size)
            while sum(map(size_of, expected.values())) > LIMIT:
                del expected[next(iter(expected))]
        assert {
            bytes([one]): kept.find(bytes([one])) for one in range(6) if kept.find(bytes([one]))
        } == expected
