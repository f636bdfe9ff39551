"""The placeholders of pictures in a prompt of tokens: where they are, and how a prompt is cut between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture, PlaceholderRun, PromptPicture


class ProcessedPrompt(NamedTuple):
    """A prompt with pictures, each with the tokens in its place: placeholders, and others around and between them."""

    token_ids: list[int]
    pictures: list[PromptPicture]
    # The places of each picture's tokens.
    extents: list[range]


class KnownPicture(NamedTuple):
    """A picture, and the text in the place of its image token."""

    picture: Picture
    digest: str
    replacement: str


def with_placeholders(
    token_ids: Sequence[int],
    image_token_id: int,
    pictures: Sequence[KnownPicture],
    encode: Callable[[str], Sequence[int]],
) -> ProcessedPrompt:
    """Replace each image token of a rendered prompt by the tokens of its picture.

    encode: returns the tokens of a replacement. Raises InvalidRequestError unless there is one for each picture.
    """
    places = [place for place, token_id in enumerate(token_ids) if token_id == image_token_id]
    if len(places) != len(pictures):
        raise InvalidRequestError(
            f"the chat template prints {len(places)} places for {len(pictures)} pictures; it takes pictures in "
            "lists of parts, in the turns that its model was trained with",
            "messages",
        )
    whole = ProcessedPrompt([], [], [])
    for (before, place), known in zip(pairwise([-1, *places]), pictures, strict=True):
        whole.token_ids.extend(token_ids[before + 1 : place])
        replacement, start = encode(known.replacement), len(whole.token_ids)
        runs = tuple(
            PlaceholderRun(start + run.start, run.length) for run in runs_of(replacement, image_token_id)
        )
        whole.token_ids.extend(replacement)
        whole.pictures.append(PromptPicture(known.picture, known.digest, runs))
        whole.extents.append(range(start, start + len(replacement)))
    whole.token_ids.extend(token_ids[places[-1] + 1 if places else 0 :])
    return whole


def runs_of(token_ids: Sequence[int], placeholder: int) -> list[PlaceholderRun]:
    """Return the runs of placeholders, in their order."""
    runs: list[PlaceholderRun] = []
    for place, token_id in enumerate(token_ids):
        if token_id != placeholder:
            continue
        if runs and runs[-1].start + runs[-1].length == place:
            runs[-1] = PlaceholderRun(runs[-1].start, runs[-1].length + 1)
        else:
            runs.append(PlaceholderRun(place, 1))
    return runs


def cut_prompt(prompt: ProcessedPrompt, tokens: int, side: Literal["left", "right"]) -> ProcessedPrompt:
    """Return a prompt with at most so many tokens, without those at one side. A picture goes as a whole."""
    surplus = len(prompt.token_ids) - tokens
    if surplus <= 0:
        return prompt
    begin, end = (surplus, len(prompt.token_ids)) if side == "left" else (0, tokens)
    for extent in prompt.extents:
        if begin in extent[1:]:
            begin = extent.stop
        if end in extent[1:]:
            end = extent.start
    kept = [
        (moved(picture, begin), range(extent.start - begin, extent.stop - begin))
        for picture, extent in zip(prompt.pictures, prompt.extents, strict=True)
        if begin <= extent.start and extent.stop <= end
    ]
    return ProcessedPrompt(
        prompt.token_ids[begin:end], [picture for picture, _ in kept], [extent for _, extent in kept]
    )


def moved(picture: PromptPicture, distance: int) -> PromptPicture:
    """Return a picture of a prompt that has lost so many tokens at its beginning."""
    runs = tuple(PlaceholderRun(run.start - distance, run.length) for run in picture.runs)
    return PromptPicture(picture.picture, picture.digest, runs)
