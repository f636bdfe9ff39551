"""The beginning of an answer that the client gives, as the model would have written it after the template's opening."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.engine.conversation.turns import Thinking, Turn
from engine_server.server.conversation.layout import TEXT_FIELD, Layout, ReasoningMarks
from engine_server.server.conversation.openings import SWITCHES, usual_opening
from engine_server.server.conversation.start import start_state
from engine_server.server.generation.answer_start import AnswerStart

State = Literal["inside", "past", "undecided"]


@dataclass(frozen=True, slots=True)
class Prefill:
    """The beginning of an answer: a thought, which is still open if no text follows it, and text."""

    thought: str
    text: str

    @classmethod
    def of(cls, turn: Turn) -> Prefill:
        thoughts = [part.text for part in turn.parts if isinstance(part, Thinking)]
        return cls("\n\n".join(thoughts), turn.text)


@dataclass(frozen=True, slots=True)
class Openings:
    """The openings of an answer to a conversation: as usual, and with the reasoning off and on."""

    layout: Layout
    usual: str
    switched: tuple[str, ...]

    @classmethod
    def of(
        cls,
        layout: Layout,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> Openings:
        switched = [
            usual_opening(template, messages, {**variables, switch: value})
            for value in (False, True)
            for switch in SWITCHES
        ]
        return cls(
            layout,
            usual_opening(template, messages, variables) or "",
            tuple(opening for opening in switched if opening is not None),
        )

    def state_after(self, opening: str) -> State:
        return start_state(self.layout, self.layout.with_calls, AnswerStart(opening)).reasoning

    def first(self, *states: State) -> str | None:
        """Return the first opening after which the state of the reasoning is one of these."""
        found = (one for one in (self.usual, *self.switched) if self.state_after(one) in states)
        return next(found, None)


def prefilled_start(openings: Openings, prefill: Prefill) -> AnswerStart:
    """Return how an answer begins that continues a prefill.

    A prefill without a thought follows an empty one, as the template writes it with the reasoning switched off. One
    whose text has the reasoning's delimiters is taken as the model's own.
    """
    layout, usual = openings.layout, openings.usual
    reasoning, state = layout.reasoning, openings.state_after(usual)
    if reasoning is None or (state == "past" and not prefill.thought):
        return AnswerStart(usual, text_begin(layout) + prefill.text)
    if prefill.thought:
        return thought_start(openings, reasoning, prefill)
    if has_delimiter(reasoning, prefill.text):
        begun = reasoning.start[0].text if state == "inside" and reasoning.start else ""
        return AnswerStart(usual, prefill.text.removeprefix(begun))
    if (without := openings.first("past")) is not None:
        return AnswerStart(without, text_begin(layout) + prefill.text)
    if state == "inside":
        return AnswerStart(usual, borders(openings, reasoning, usual)[1].lstrip() + prefill.text)
    return AnswerStart(usual, text_begin(layout) + prefill.text)


def thought_start(openings: Openings, reasoning: ReasoningMarks, prefill: Prefill) -> AnswerStart:
    """Return how an answer begins with a thought, which is still open if no text follows it."""
    opening = openings.first("inside", "undecided") or openings.usual
    begin, end = borders(openings, reasoning, opening)
    begun = "" if openings.state_after(opening) == "inside" else begin
    return AnswerStart(opening, begun + prefill.thought + (end + prefill.text if prefill.text else ""))


def has_delimiter(reasoning: ReasoningMarks, text: str) -> bool:
    return any(mark.text in text for mark in reasoning.start + reasoning.end)


def borders(openings: Openings, reasoning: ReasoningMarks, opening: str) -> tuple[str, str]:
    """Return what the model writes before a thought, and between it and the text."""
    layout = openings.layout
    if layout.channels is not None:
        channels = layout.channels
        closed = channels.end[0] + channels.start + channels.role
        return channels.reasoning_start, closed + text_begin(layout)
    if layout.capabilities.around_reasoning is not None:
        return layout.capabilities.around_reasoning
    start, end = (marks[0].text if marks else "" for marks in (reasoning.start, reasoning.end))
    empty = re.compile(rf"{re.escape(start)}(\s*){re.escape(end)}(\s*)$")
    for found in filter(None, map(empty.search, openings.switched)):
        space, after = found.groups()
        half = len(space) // 2
        return start + space[:half], f"{space[half:]}{end}{after}{text_begin(layout)}"
    # Such as a line end, which then follows the other delimiter twice.
    space = opening.rpartition(start)[2] if start and start in opening else ""
    return start, f"{space}{end}{space}{space}{text_begin(layout)}"


def text_begin(layout: Layout) -> str:
    """Return what the model writes before its text."""
    if layout.channels is not None:
        channels = layout.channels
        return f"{channels.channel}{channels.final}{channels.body}"
    regions = (region for region in layout.with_calls.regions if region.name == TEXT_FIELD and region.open)
    opened = next((region.open.literals for region in regions if region.open), None)
    return layout.with_calls.marks.plain(opened[0]) if opened else ""
