"""Quotations of input in error messages are short."""

import pytest

from engine_server.contract.base.quoting import MAX_QUOTE, quote, shorten


def test_short_value_is_quoted_whole() -> None:
    assert quote("a'b") == repr("a'b")
    assert quote([1, {"a": None}]) == "[1, {'a': None}]"
    assert shorten("abc") == "abc"


@pytest.mark.parametrize(
    "value",
    [
        "a" * 10**6,
        [["a" * 100] * 100] * 100,
        {"a" * 1000: "b" * 1000},
        b"a" * 10**6,
        10**4000,
        [[[[["a" * 99]]]]] * 9,
    ],
    ids=["text", "lists", "mapping", "bytes", "integer", "nested lists"],
)
def test_long_value_is_quoted_in_part(value: object) -> None:
    assert len(quote(value)) <= MAX_QUOTE


def test_long_text_ends_with_an_ellipsis() -> None:
    assert shorten("a" * 201) == "a" * 197 + "..."
    assert shorten("a" * 200) == "a" * 200
