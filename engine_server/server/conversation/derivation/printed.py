"""What a chat template prints of an answer: the parts that it prints together, and what is around them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.derivation.calls import AroundContent
from engine_server.server.conversation.derivation.pieces import marks_in
from engine_server.server.conversation.derivation.probes import (
    CALL,
    CONTENT,
    KEYS,
    NAMES,
    REASONING,
    TOOLS,
    TWO_CALLS,
    Answer,
    Probes,
    UnknownFormError,
)
from engine_server.server.conversation.derivation.reasoning import ReasoningForm

# In a generated answer.
MOST_CALLS = 3
# Some templates print the name of a call only as a part of its id.
IDS_WITH_NAMES: tuple[Literal["short", "functions"], ...] = ("short", "functions")


@dataclass(frozen=True, slots=True)
class PrintedAnswers:
    """The answers that a template prints. `reasoning` is None for those without."""

    probes: Probes
    reasoning: ReasoningForm | None
    around: AroundContent
    # The marks in which content is.
    wrapper: tuple[str, str] | None
    # The parts that are printed together in one answer.
    shapes: list[frozenset[str]]
    most_calls: int


def print_answers(probes: Probes, reasoning: ReasoningForm | None) -> PrintedAnswers:
    """Return what a template prints of answers. Raises UnknownFormError for one that prints no content."""
    around, wrapper = around_content(probes, reasoning)
    two = probes.render(Answer(calls=TWO_CALLS))
    prints_two = two is not None and NAMES[1] in two.text and not around.in_several_turns(two.text)
    full = probes if reasoning is None or reasoning.probes is None else reasoning.probes
    shapes = [
        shape
        for shape in printed_shapes(full, around)
        if reasoning is None or not prints_as_reasoning(full, reasoning, shape)
    ]
    if not shapes:
        raise UnknownFormError("no part of an answer is printed in one turn")
    return PrintedAnswers(full, reasoning, around, wrapper, shapes, MOST_CALLS if prints_two else 1)


def probes_with_calls(template: ChatTemplate) -> Probes:
    """Return the probes of a template that prints calls, with arguments as it takes them. Raises UnknownFormError."""
    for ids in IDS_WITH_NAMES:
        for as_text in (False, True):
            probes = Probes(template, TOOLS, text_arguments=as_text, ids=ids)
            if prints_call(probes):
                return probes
    raise UnknownFormError("the template prints no calls")


def prints_call(probes: Probes) -> bool:
    """Return True if a template prints a call with its name, and with arguments that are JSON if they are text."""
    rendering = probes.render(Answer(calls=CALL))
    return rendering is not None and NAMES[0] in rendering.text and f"{{'{KEYS[0]}'" not in rendering.text


def around_content(
    probes: Probes, reasoning: ReasoningForm | None
) -> tuple[AroundContent, tuple[str, str] | None]:
    """Return what is printed around content, and the marks in which content is."""
    rendering = probes.render(Answer(CONTENT))
    if rendering is None or CONTENT not in rendering.text:
        raise UnknownFormError("the template prints no content")
    before, _, after = rendering.text.partition(CONTENT)
    close = "" if reasoning is None else reasoning.close
    inner = (before.rpartition(close)[2] if close else before).strip()
    marks = marks_in(after)
    wrapper = None
    if marks_in(inner) and len(marks) > 1:
        wrapper = (inner, marks.pop(0))
        after = after.partition(wrapper[1])[2]
    return AroundContent(before, after, close, tuple(marks[:1])), wrapper


def printed_shapes(probes: Probes, around: AroundContent) -> list[frozenset[str]]:
    """Return the parts that a template prints together in one answer, and not in several turns."""
    sentinels = {"content": CONTENT, "reasoning": REASONING, "calls": NAMES[0]}
    shapes = []
    for chosen in product((False, True), repeat=3):
        shape = frozenset(part for part, has in zip(sentinels, chosen, strict=True) if has)
        rendering = probes.render(answer_of(shape)) if shape - {"reasoning"} else None
        if rendering is None or around.in_several_turns(rendering.text):
            continue
        if all(sentinels[part] in rendering.text for part in shape):
            shapes.append(shape)
    return shapes


def prints_as_reasoning(probes: Probes, reasoning: ReasoningForm, shape: frozenset[str]) -> bool:
    """Return True if the content of an answer with some parts is printed in the place of the reasoning."""
    rendering = probes.render(answer_of(shape)) if "content" in shape else None
    if rendering is None:
        return False
    return rendering.text.partition(CONTENT)[0].rstrip().endswith(reasoning.open)


def answer_of(shape: frozenset[str]) -> Answer:
    """Return a short answer that has some parts."""
    content = CONTENT if "content" in shape else ""
    reasoning = REASONING if "reasoning" in shape else ""
    return Answer(content, reasoning, CALL if "calls" in shape else ())
