"""Pictures in the results of tools, in a history whose template prints none there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from engine_server.engine.conversation.turns import ImagePart, Omitted, Part, Result, Text, Turn

# Takes the place of a picture in a result.
BELOW = Text("[image below]")


def with_moved_pictures(turns: Sequence[Turn]) -> list[Turn]:
    """Return a conversation whose results have no pictures: these are a turn of the user after consecutive results."""
    found: list[Turn] = []
    for is_tool, group in groupby(turns, key=lambda turn: turn.role == "tool"):
        consecutive = list(group)
        pictures = pictures_of(consecutive) if is_tool else []
        if not pictures:
            found += consecutive
            continue
        found += [with_results(turn, lambda part: BELOW) for turn in consecutive]
        found.append(Turn("user", tuple(pictures), path=consecutive[-1].path))
    return found


def with_omitted_pictures(turns: Sequence[Turn]) -> list[Turn]:
    """Return a conversation with notes in the places of the pictures in results."""
    return [with_results(turn, lambda part: part.note) for turn in turns]


def pictures_of(turns: Sequence[Turn]) -> list[ImagePart]:
    """Return the pictures in results."""
    return [
        one
        for turn in turns
        for part in turn.parts
        if isinstance(part, Result)
        for one in part.content
        if isinstance(one, ImagePart)
    ]


def with_results(turn: Turn, change: Callable[[ImagePart], Text | Omitted]) -> Turn:
    """Return a turn whose results have something else in the places of their pictures."""
    parts: list[Part] = []
    for part in turn.parts:
        if isinstance(part, Result):
            content = (change(one) if isinstance(one, ImagePart) else one for one in part.content)
            part = replace(part, content=tuple(content))
        parts.append(part)
    return replace(turn, parts=tuple(parts))
