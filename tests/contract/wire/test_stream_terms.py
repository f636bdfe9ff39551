"""The header by which a router asks for the continuation of a stream, and the hash of its prompt."""

import pytest

from engine_server.contract.wire.continuation import REPORT_PREFIX, StreamTerms, TokenReport, prompt_hash

HASH, OTHER = "0123456789abcdef" * 2, "f" * 32


@pytest.mark.parametrize(
    ("terms", "value"),
    [
        (StreamTerms(), ""),
        (StreamTerms(cached_tokens=0), "cached=0"),
        (StreamTerms(16, HASH, OTHER), f"cached=16, prompt={HASH}, settings={OTHER}"),
        (StreamTerms(settings=OTHER), f"settings={OTHER}"),
    ],
)
def test_header_has_what_is_known_and_nothing_else(terms: StreamTerms, value: str) -> None:
    assert terms.value() == value
    assert StreamTerms.parse(value) == terms


@pytest.mark.parametrize(
    "value",
    [
        "anything",
        "cached=-1, prompt=ABC, settings=",
        f"cached={1 << 40}, prompt={HASH}0",
        "cached=9e3, prompt=" + "\u0663" * 32,
    ],
)
def test_values_of_another_form_count_as_unknown(value: str) -> None:
    assert StreamTerms.parse(value) == StreamTerms()


def test_further_pairs_are_ignored_wherever_they_stand() -> None:
    value = f"new=1, cached=4, other=x=y, settings={HASH}, last"

    assert StreamTerms.parse(value) == StreamTerms(4, None, HASH)


def test_hash_of_a_prompt_is_the_same_in_all_releases() -> None:
    assert prompt_hash([1, 2, 30_000]) == "4db93d86521f33d3ac2db0af2347609b"
    assert prompt_hash([12, 30_000]) != prompt_hash([1, 2, 30_000])
    assert prompt_hash([1, 2, 30_000], ["0a" * 32]) == "8139dffccaf60324c4528bb1b11f9e2b"


def test_hash_of_a_prompt_depends_on_its_pictures_and_their_order() -> None:
    pictures = [[], ["a"], ["b"], ["a", "b"], ["b", "a"], ["ab"]]

    assert len({prompt_hash([1, 2], digests) for digests in pictures}) == len(pictures)


@pytest.mark.parametrize("text", [HASH + "\\n", HASH[1:], HASH.upper(), "\\r\\nX: y"])
def test_report_with_a_hash_of_another_form_is_refused(text: str) -> None:
    """It would become a part of a header."""
    with pytest.raises(ValueError, match="matching regex"):
        TokenReport.decode(REPORT_PREFIX + b'{"seed": 1, "prompt_hash": "%b"}' % text.encode())
