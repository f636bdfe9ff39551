"""The key in a request's field `Authorization`."""

import pytest

from engine_server.shared.bearer import bearer_key


@pytest.mark.parametrize("field", [b"Bearer key", b"bearer key", b"BEARER   key "])
def test_returns_the_key_in_any_spelling_of_the_scheme(field):
    assert bearer_key(field) == b"key"


@pytest.mark.parametrize("field", [b"", b"key", b"Basic key", b"Bearer", b"Bearerkey"])
def test_returns_none_for_other_schemes(field):
    assert bearer_key(field) is None
