"""The start of an answer: what the end of the prompt says about its reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine_server.server.conversation.layout import AnswerRegions, Layout
from engine_server.server.conversation.regions import Body, Closed, Opened, RegionScanner
from engine_server.server.generation.answer_start import AnswerStart


@dataclass(frozen=True, slots=True)
class StartState:
    """The place in an answer at which the model goes on."""

    # Past the reasoning also where the model can't reason.
    reasoning: Literal["inside", "past", "undecided"]
    # Within a region of content that has a beginning of its own, such as a channel.
    in_content: bool = False


def start_state(layout: Layout, regions: AnswerRegions, start: AnswerStart) -> StartState:
    """Return the place at which a start ends. Text of earlier turns has no influence."""
    scanner = RegionScanner(regions.regions)
    opened = scanner.begin(regions.marks.marked(start.opening))
    continued = scanner.begin(regions.marks.marked(start.prefill))
    if scanner.kind == "reasoning":
        return StartState("inside")
    begun = any(
        event.kind == "content" and event.text.strip() for event in continued if isinstance(event, Body)
    )
    reasoned = any(
        isinstance(event, Opened | Closed) and event.kind == "reasoning" for event in [*opened, *continued]
    )
    in_content = scanner.in_region
    if layout.reasoning is None or begun or reasoned or in_content or has_bare_end(layout, start):
        return StartState("past", in_content)
    return StartState("undecided")


def has_bare_end(layout: Layout, start: AnswerStart) -> bool:
    """Return True if a start has the end of a reasoning; its beginning may be missing."""
    text = start.opening + start.prefill
    return layout.reasoning is not None and any(mark.text in text for mark in layout.reasoning.end)
