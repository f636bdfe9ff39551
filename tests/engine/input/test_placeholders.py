"""Placeholders of pictures in prompts of tokens."""

from typing import Literal

import pytest

from engine_server.engine.input.placeholders import KnownPicture, cut_prompt, with_placeholders
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture, PlaceholderRun

IMAGE = 9


def picture(replacement: str) -> KnownPicture:
    return KnownPicture(Picture(b"", ""), replacement, replacement)


def digits(text: str) -> list[int]:
    return [int(digit) for digit in text]


def test_tokens_of_a_picture_take_the_place_of_its_token() -> None:
    prompt = with_placeholders([1, IMAGE, 2, IMAGE], IMAGE, [picture("7998"), picture("9897")], digits)

    assert prompt.token_ids == [1, 7, 9, 9, 8, 2, 9, 8, 9, 7]
    assert [one.runs for one in prompt.pictures] == [
        (PlaceholderRun(2, 2),),
        (PlaceholderRun(6, 1), PlaceholderRun(8, 1)),
    ]
    assert prompt.extents == [range(1, 5), range(6, 10)]


@pytest.mark.parametrize("token_ids", [[1], [IMAGE, IMAGE]])
def test_as_many_places_as_pictures_are_demanded(token_ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="places for 1 pictures"):
        with_placeholders(token_ids, IMAGE, [picture("9")], digits)


def test_prompt_without_pictures_stays_as_it_is() -> None:
    prompt = with_placeholders([1, 2], IMAGE, [], digits)
    assert prompt.token_ids == [1, 2]
    assert cut_prompt(prompt, 2, "left") is prompt


@pytest.mark.parametrize(
    "tokens, side, kept, starts",
    [
        (7, "left", [1, 7, 9, 9, 8, 2, 3], [2]),
        (6, "left", [7, 9, 9, 8, 2, 3], [1]),
        (5, "left", [2, 3], []),
        (3, "left", [2, 3], []),
        (2, "left", [2, 3], []),
        (6, "right", [1, 7, 9, 9, 8, 2], [2]),
        (5, "right", [1, 7, 9, 9, 8], [2]),
        (4, "right", [1], []),
        (2, "right", [1], []),
    ],
)
def test_cut_takes_a_picture_as_a_whole(
    tokens: int, side: Literal["left", "right"], kept: list[int], starts: list[int]
) -> None:
    prompt = with_placeholders([1, IMAGE, 2, 3], IMAGE, [picture("7998")], digits)

    cut = cut_prompt(prompt, tokens, side)

    assert cut.token_ids == kept
    assert [one.runs[0].start for one in cut.pictures] == starts
    assert [extent.start + 1 for extent in cut.extents] == starts
