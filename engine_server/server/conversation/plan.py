"""The plan of one answer: its reading, its grammar, its stop strings and its reasoning, from one start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from engine_server.requests.reasoning import Reasoning
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.stop_scope import StopScope
from engine_server.server.conversation.calls.form import named_pattern
from engine_server.server.conversation.grammar import answer_grammar
from engine_server.server.conversation.layout import Layout
from engine_server.server.conversation.reader import AnswerReader, ReadAnswer
from engine_server.server.conversation.start import start_state
from engine_server.server.conversation.stop_scope import ContentScope
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.tool_use import AnswerStyle
from engine_server.structured.schemas.arguments import ArgumentTypes


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How one answer is generated and read."""

    params: SamplingParams
    # None for an answer that is plain text.
    answer: ReadAnswer | None

    @property
    def new_reader(self) -> Callable[[int], AnswerReader] | None:
        return None if self.answer is None else self.answer.reader

    @property
    def new_scope(self) -> Callable[[], StopScope] | None:
        """Makes the scope of stop strings; None where they are matched in all text."""
        answer = self.answer
        return None if answer is None else lambda: ContentScope(answer)


def called_pattern(layout: Layout, style: AnswerStyle) -> str | None:
    """Return the pattern of what follows a call's mark if it calls a tool of an answer; None if it is not known."""
    if layout.call is None or not style.callable:
        return None
    beginning = layout.call.before + layout.call.beginning
    mark = next((mark.text for mark in layout.call_marks if beginning.startswith(mark.text)), None)
    names = [tool["function"]["name"] for tool in style.callable]
    return None if mark is None else named_pattern(layout.call, mark, names)


def plan_conversation(
    layout: Layout,
    start: AnswerStart,
    style: AnswerStyle,
    params: SamplingParams,
    answer_id: str,
    whole: bool,
    token_bytes: Sequence[bytes],
) -> AnswerPlan:
    """Return the plan of an answer. A function of its arguments alone.

    params: those of the request, with the form of its text. whole: the answer is not streamed. token_bytes: the bytes
    of each token, for delimiters of the reasoning that are text.
    """
    calls = style.callable is not None
    regions = layout.regions(calls)
    state = start_state(layout, regions, start)
    grammar = answer_grammar(layout, state, style.tools, params.structured_outputs)
    demands = grammar is not None and grammar.demands
    marks, reasoning = layout.reasoning, None
    if marks is not None:
        reasoning = Reasoning(
            start=list(marks.start),
            end=list(marks.end),
            calls=list(layout.call_marks) if calls else [],
            called=called_pattern(layout, style),
            inside=state.reasoning == "inside",
            first=demands,
            budget=style.reasoning_budget,
        )
    depends_on_reasoning = style.reasoning_budget is not None or grammar is not None
    planned = msgspec.structs.replace(
        params,
        structured_outputs=grammar and grammar.params,
        reasoning=reasoning if depends_on_reasoning and state.reasoning != "past" else None,
        mark_token_ids=None if regions.is_plain else list(regions.marks.token_ids),
    )
    if regions.is_plain:
        return AnswerPlan(planned, None)
    answer = ReadAnswer(
        regions=regions,
        answer_id=answer_id,
        start=start,
        properties={
            tool["function"]["name"]: ArgumentTypes(tool["function"].get("parameters"))
            for tool in style.callable or ()
        },
        one_call=style.tools is not None and not style.tools.parallel,
        whole=whole,
        include_reasoning=style.include_reasoning,
        call_ids=layout.call_id,
        content_is_last=demands,
        strips_beginning=grammar is not None and grammar.space_first,
        reasoning=reasoning,
        token_bytes=token_bytes,
    )
    return AnswerPlan(planned, answer)
