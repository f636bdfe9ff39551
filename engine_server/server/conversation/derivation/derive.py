"""The derivation of a template's form: probes, the entry that follows from them, and its proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import msgspec

from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.derivation import answers
from engine_server.server.conversation.derivation.answers import AnswerSource
from engine_server.server.conversation.derivation.arguments import (
    TagArguments,
    UnknownFormError,
    derive_arguments,
)
from engine_server.server.conversation.derivation.calls import AroundContent, CallTexts, derive_texts
from engine_server.server.conversation.derivation.entry import answer_fields, call_fields, call_form
from engine_server.server.conversation.derivation.pieces import marks_in
from engine_server.server.conversation.derivation.probes import (
    CALL,
    CONTENT,
    KEYS,
    NAMES,
    REASONING,
    TOOLS,
    Answer,
    Probes,
)
from engine_server.server.conversation.derivation.proof import Proof
from engine_server.server.conversation.derivation.reasoning import ReasoningForm, derive_reasoning
from engine_server.server.conversation.response_template import read_regions

# At a start; tests prove more.
PROOFS = 60
# Some templates print the name of a call only as a part of its id.
IDS_WITH_NAMES: tuple[Literal["short", "functions"], ...] = ("short", "functions")


class Derived(msgspec.Struct, frozen=True, tag="derived"):
    """The form of a template's answers, as an entry of `formats.yaml`."""

    entry: dict[str, Any]


class NotDerived(msgspec.Struct, frozen=True, tag="not derived"):
    """Why a template has no derived form."""

    reason: str


def derive(template: ChatTemplate, proofs: int = PROOFS) -> Derived | NotDerived:
    """Return the form that a template's renderings have, proven with generated answers."""
    try:
        return Derived(derive_entry(template, proofs))
    except UnknownFormError as error:
        return NotDerived(str(error))


def derive_entry(template: ChatTemplate, proofs: int) -> dict[str, Any]:
    probes = probes_of(template)
    reasoning = derive_reasoning(probes)
    around, wrapper = around_content(probes, reasoning)
    ends = list(around.turn_ends)
    form = derive_arguments(probes)
    texts = derive_texts(probes, form, around)
    if texts.after and not marks_in(texts.before):
        ends = [*marks_in(texts.after), *ends]
        texts = replace(texts, after="")
    tags = form if isinstance(form, TagArguments) else None
    calls = call_fields(texts, tags, ends)
    call = call_form(texts, tags)
    if "^" in calls["tool_calls"].get("open_pattern", ""):
        call["at_start"] = True
    pair = None if reasoning is None else (reasoning.open, reasoning.close)
    entry: dict[str, Any] = {"call": call, "template": {"fields": answer_fields(pair, calls, wrapper, ends)}}
    if probes.ids == "functions" or not prints_call(replace(probes, ids="long")):
        entry["call_id"] = probes.ids
    prove(probes, reasoning, around, entry, texts, proofs)
    return entry


def probes_of(template: ChatTemplate) -> Probes:
    """Return the probes of a template, with arguments as it takes them. Raises UnknownFormError."""
    if not template.takes_tools and "tool_calls" not in template.text:
        raise UnknownFormError("the template takes no tools")
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


def prove(
    probes: Probes,
    reasoning: ReasoningForm | None,
    around: AroundContent,
    entry: Mapping[str, Any],
    texts: CallTexts,
    proofs: int,
) -> None:
    """Raise UnknownFormError for an entry with which a generated answer is not read as it is."""
    form = CallForm(**entry["call"])
    printed = reasoning.probes if reasoning is not None and reasoning.probes is not None else probes
    template = {"start_anchor": "\0", **entry["template"]}
    try:
        regions = read_regions({}, template, None)
    except ValueError as error:
        raise UnknownFormError(f"the derived form is invalid: {error}") from None
    from_prompt = reasoning is not None and reasoning.only_in_prompt
    proof = Proof(replace(printed, tools=answers.TOOLS), regions, form, around, from_prompt)
    shapes = printed_shapes(printed, around)
    source = AnswerSource(
        shapes, forbidden_texts(entry, form), 1 if texts.at_most_one else 3, at_start=form.at_start
    )
    for answer in source.answers(proofs):
        failure = proof.failure(answer)
        if failure is not None:
            raise UnknownFormError(f"not proven: {failure}"[:500])


def printed_shapes(probes: Probes, around: AroundContent) -> list[frozenset[str]]:
    """Return the parts that a template prints together in one answer, and not in several turns."""
    sentinels = {"content": CONTENT, "reasoning": REASONING, "calls": NAMES[0]}
    shapes = []
    for chosen in product((False, True), repeat=3):
        shape = frozenset(part for part, has in zip(sentinels, chosen, strict=True) if has)
        content, reasoning = (
            text if part in shape else "" for part, text in (("content", CONTENT), ("reasoning", REASONING))
        )
        answer = Answer(content, reasoning, CALL if "calls" in shape else ())
        rendering = probes.render(answer) if shape - {"reasoning"} else None
        if rendering is None or around.in_several_turns(rendering.text):
            continue
        if all(sentinels[part] in rendering.text for part in shape):
            shapes.append(shape)
    return shapes


def forbidden_texts(entry: Mapping[str, Any], form: CallForm) -> list[str]:
    """Return the delimiters of a form, which in text nothing tells from those that delimit."""
    fields = entry["template"]["fields"]
    literals = [form.before, form.beginning, form.middle, form.end, form.after]
    for field in fields.values():
        for key in ("open", "close"):
            given = field.get(key, [])
            literals += [given] if isinstance(given, str) else given
    for tag in (form.tag, form.other_tag):
        if tag is not None:
            literals += [tag.partition("KEY")[0], tag.partition("VALUE")[2]]
    marks = [mark for text in literals for mark in marks_in(text)]
    whole = [text.strip() for text in literals if not marks_in(text) and len(text.strip()) > 2]
    return list(dict.fromkeys([*marks, *whole]))
