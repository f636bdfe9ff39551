"""The beginning of an answer that the client gives, as the model would have written it after the template's opening."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine_server.server.conversation.history.turns import Thinking, Turn
from engine_server.server.conversation.layout import TEXT_FIELD, Layout, ReasoningMarks
from engine_server.server.conversation.start import start_state
from engine_server.server.conversation.template.chat_template import ChatTemplate
from engine_server.server.conversation.template.openings import SWITCHES, usual_opening
from engine_server.server.generation.answer_start import AnswerStart


@dataclass(frozen=True, slots=True)
class Prefill:
    """The beginning of an answer: a thought, which is still open if no text follows it, and text."""

    thought: str
    text: str

    @classmethod
    def of(cls, turn: Turn) -> Prefill:
        thoughts = [part.text for part in turn.parts if isinstance(part, Thinking)]
        return cls("\n\n".join(thoughts), turn.text)


def prefilled_start(
    layout: Layout,
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
    prefill: Prefill,
) -> AnswerStart:
    """Return how an answer begins that continues a prefill. messages: those before it.

    A prefill without a thought follows an empty one, as the template writes it with the reasoning switched off. One
    whose text has the reasoning's delimiters is taken as the model's own.
    """
    opening = usual_opening(template, messages, variables) or ""
    state = state_after(layout, opening)
    if layout.reasoning is None or (state == "past" and not prefill.thought):
        return AnswerStart(opening, text_begin(layout) + prefill.text)
    begin, end = reasoning_borders(layout)
    if prefill.thought:
        thought = ("" if state == "inside" else begin) + prefill.thought
        return AnswerStart(opening, thought + (end + prefill.text if prefill.text else ""))
    if has_delimiter(layout.reasoning, prefill.text):
        started = layout.reasoning.start[0].text if state == "inside" and layout.reasoning.start else ""
        return AnswerStart(opening, prefill.text.removeprefix(started))
    off = (usual_opening(template, messages, {**variables, switch: False}) for switch in SWITCHES)
    without = next((one for one in off if one is not None and state_after(layout, one) == "past"), None)
    if without is not None:
        return AnswerStart(without, text_begin(layout) + prefill.text)
    closed = end.lstrip() if state == "inside" else text_begin(layout)
    return AnswerStart(opening, closed + prefill.text)


def state_after(layout: Layout, opening: str) -> Literal["inside", "past", "undecided"]:
    return start_state(layout, layout.with_calls, AnswerStart(opening)).reasoning


def has_delimiter(reasoning: ReasoningMarks, text: str) -> bool:
    return any(mark.text in text for mark in reasoning.start + reasoning.end)


def reasoning_borders(layout: Layout) -> tuple[str, str]:
    """Return what the model writes before a thought, and between it and the text."""
    assert layout.reasoning is not None
    if layout.channels is not None:
        channels = layout.channels
        closed = channels.end[0] + channels.start + channels.role
        return channels.reasoning_start, closed + text_begin(layout)
    if layout.capabilities.around_reasoning is not None:
        return layout.capabilities.around_reasoning
    return f"{layout.reasoning.start[0].text}\n", f"\n{layout.reasoning.end[0].text}\n\n{text_begin(layout)}"


def text_begin(layout: Layout) -> str:
    """Return what the model writes before its text."""
    if layout.channels is not None:
        channels = layout.channels
        return f"{channels.channel}{channels.final}{channels.body}"
    regions = (region for region in layout.with_calls.regions if region.name == TEXT_FIELD and region.open)
    opened = next((region.open.literals for region in regions if region.open), None)
    return layout.with_calls.marks.plain(opened[0]) if opened else ""
