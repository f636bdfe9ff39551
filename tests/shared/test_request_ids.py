"""Ids of requests that can be logged as they are."""

import pytest

from engine_server.shared.request_ids import is_valid


@pytest.mark.parametrize("given", [b"a", b"!", b"0f8c-11", b"~" * 128])
def test_printable_id_is_valid(given):
    assert is_valid(given)


@pytest.mark.parametrize("given", [b"", b"a b", b"\xe9", b"a\x7f", b"a\n", b"a\x1b[2J", b"~" * 129])
def test_id_that_is_too_long_or_not_printable_is_invalid(given):
    assert not is_valid(given)
