"""JSON documents of any depth."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.base import nesting
from engine_server.contract.base.nesting import KEPT_LEVELS, decode_shallow, has_more_levels, shallow

DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


def nested(levels: int, inner: str = "1") -> bytes:
    return ('{"a":' * levels + inner + "}" * levels).encode()


def cut(value: Any, levels: int) -> Any:
    """Return what `shallow` leaves of a value."""
    if not isinstance(value, list | dict):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [cut(each, levels - 1) for each in value]
    return {key: cut(each, levels - 1) for key, each in value.items()}


@given(DOCUMENTS, st.integers(1, 4), st.booleans())
def test_values_below_the_last_level_become_null_and_no_others(
    document: Any, levels: int, is_ascii: bool
) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nesting, "KEPT_LEVELS", levels)
        assert json.loads(shallow(text)) == cut(document, levels)
    assert has_more_levels(document, levels) == (cut(document, levels) != document)


@pytest.mark.parametrize("decoder", [json.loads, msgspec.json.decode])
def test_a_document_at_the_limit_of_an_api_server_is_decoded(decoder: Any) -> None:
    decoded = decode_shallow(decoder, b'{"deep":%s,"beside":2}' % nested(9990))
    assert decoded["beside"] == 2
    assert has_more_levels(decoded, KEPT_LEVELS - 1) and not has_more_levels(decoded, KEPT_LEVELS)


@pytest.mark.parametrize("content", [b'{"a":' * 20_000, b"]" * 20_000, b'["' + nested(20_000), b"[" * 20_000])
def test_a_document_that_is_not_json_is_refused(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_shallow(msgspec.json.decode, content)
