"""The derivation of a template's form from what it prints, and its proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.derivation.arguments import TagArguments, derive_arguments
from engine_server.server.conversation.derivation.calls import derive_texts
from engine_server.server.conversation.derivation.entry import answer_fields, call_fields, call_form
from engine_server.server.conversation.derivation.pieces import marks_in
from engine_server.server.conversation.derivation.printed import (
    PrintedAnswers,
    print_answers,
    prints_call,
    probes_with_calls,
)
from engine_server.server.conversation.derivation.probes import UnknownFormError
from engine_server.server.conversation.derivation.proof import PROOFS, prove
from engine_server.server.conversation.derivation.reasoning import derive_reasoning


class Derived(msgspec.Struct, frozen=True, tag="derived"):
    """The form of a template's answers, as an entry of `formats.yaml`."""

    entry: dict[str, Any]


class NotDerived(msgspec.Struct, frozen=True, tag="not derived"):
    """Why a template has no derived form."""

    reason: str


def derive(template: ChatTemplate, proofs: int = PROOFS) -> Derived | NotDerived:
    """Return the form that a template's renderings have, proven with generated answers."""
    try:
        probes = probes_with_calls(template)
        return derive_printed(print_answers(probes, derive_reasoning(probes)), proofs)
    except UnknownFormError as error:
        return NotDerived(str(error))


def derive_printed(printed: PrintedAnswers, proofs: int = PROOFS) -> Derived | NotDerived:
    """Return the form of answers that a template prints."""
    try:
        entry = derive_entry(printed)
        prove(printed, entry, proofs)
    except UnknownFormError as error:
        return NotDerived(str(error))
    return Derived(entry)


def derive_entry(printed: PrintedAnswers) -> dict[str, Any]:
    """Return the form of answers as an entry of `formats.yaml`, without proof. Raises UnknownFormError."""
    probes, reasoning, around = printed.probes, printed.reasoning, printed.around
    arguments = derive_arguments(probes)
    texts = derive_texts(probes, arguments, around)
    ends = list(around.turn_ends)
    if texts.after and not marks_in(texts.before):
        ends = [*marks_in(texts.after), *ends]
        texts = replace(texts, after="")
    tags = arguments if isinstance(arguments, TagArguments) else None
    calls = call_fields(texts, tags, ends)
    call = call_form(texts, tags)
    if "^" in calls["tool_calls"].get("open_pattern", ""):
        call["at_start"] = True
    pair = None if reasoning is None else reasoning.pair
    fields = answer_fields(pair, calls, printed.wrapper, ends)
    entry: dict[str, Any] = {"call": call, "template": {"fields": fields}}
    if probes.ids == "functions" or not prints_call(replace(probes, ids="long")):
        entry["call_id"] = probes.ids
    return entry
