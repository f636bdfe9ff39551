"""Bodies of answers, which are read up to a limit alone."""

from collections.abc import AsyncIterator, Iterable

import pytest

from engine_server.contract.base.bodies import read_at_most

PARTS = [b"ab", b"", b"cde"]


async def test_body_up_to_the_limit_is_joined() -> None:
    assert await read_at_most(5, arriving(PARTS)) == b"abcde"


async def test_no_part_after_the_limit_is_read() -> None:
    parts = iter([*PARTS, b"f", b"never read"])
    with pytest.raises(ValueError, match="the answer has more than 5 bytes"):
        await read_at_most(5, arriving(parts))
    assert [*parts] == [b"never read"]


async def arriving(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
