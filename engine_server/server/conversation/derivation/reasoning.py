"""The delimiters of the reasoning that a chat template prints, opens or names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine_server.engine.conversation.capabilities import REASONING_FIELDS
from engine_server.engine.conversation.chat_template import ChatTemplate, TemplateRefusedError
from engine_server.server.conversation.derivation.pieces import FIND_MARK, marks_in
from engine_server.server.conversation.derivation.probes import (
    CALL,
    CONTENT,
    REASONING,
    USER,
    Answer,
    Probes,
)
from engine_server.server.conversation.openings import SWITCHES

# The end of an opening within the reasoning, and after an empty one.
OPEN_MARK = r"(?P<bracket>[<\[])(?P<name>[A-Za-z][\w:-]*)(?P<end>[>\]])"
OPENED = re.compile(rf"{OPEN_MARK}\s*$")
LEFT_EMPTY = re.compile(rf"{OPEN_MARK}\s*(?P=bracket)/(?P=name)(?P=end)\s*$")
# Delimiters that templates name without printing them.
KNOWN = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """The delimiters of the reasoning, and the probes whose answers have it."""

    open: str
    close: str
    # None: the template does not print it.
    probes: Probes | None = None
    # The prompt alone has its beginning.
    only_in_prompt: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        return self.open, self.close


def derive_reasoning(probes: Probes) -> ReasoningForm | None:
    """Return the delimiters of the reasoning of a template's answers; None if they have none."""
    for printed in printing(probes):
        form = form_of(printed)
        if form is not None:
            return form
    found = switched(probes.template) or named(probes.template)
    return None if found is None else ReasoningForm(*found)


def printing(probes: Probes) -> Iterator[Probes]:
    """Yield the probes, each with a field and variables, whose reasoning the template may print."""
    switches = [{name: True} for name in SWITCHES if name in probes.template.variables]
    for name in REASONING_FIELDS:
        if name in probes.template.text:
            for variables in [{}, *switches]:
                yield probes.with_reasoning(name, variables)


def form_of(probes: Probes) -> ReasoningForm | None:
    """Return the delimiters that a template prints around the reasoning; None if it doesn't print it."""
    for content, calls in ((CONTENT, ()), ("", CALL), (CONTENT, CALL)):
        answer = Answer(content, REASONING, calls)
        rendering = probes.render(answer)
        if rendering is None or rendering.text.count(REASONING) != 1:
            continue
        before, _, after = rendering.text.partition(REASONING)
        close = closing(after.partition(CONTENT)[0] if answer.content else after)
        open = opening(probes, rendering.header, before, close)
        if open and close:
            return ReasoningForm(open, close, probes, open not in rendering.header + before)
    return None


def closing(after: str) -> str:
    """Return the delimiter with which a text begins that follows the reasoning."""
    text = after.strip()
    found = FIND_MARK.match(text)
    return found[0] if found else ""


def opening(probes: Probes, header: str, before: str, close: str) -> str:
    """Return the delimiter before the reasoning, of which the header may have a part.

    A mark in the header that an answer without reasoning closes begins an empty one; others are those of the turn.
    """
    if before.strip():
        return before.strip()
    ends = marks_in(header)
    if ends and closed_by(ends[-1], close):
        return header[header.rindex(ends[-1]) :].strip()
    plain = probes.render(Answer(CONTENT))
    if plain is not None and close in plain.header + plain.text.partition(CONTENT)[0]:
        text = (plain.header + plain.text).partition(close)[0]
        marks = marks_in(text)
        return text[text.rindex(marks[-1]) :].strip() if marks else ""
    return probes.opening[len(header) :].strip()


def closed_by(open: str, close: str) -> bool:
    """Return True if two marks are a pair by their letters."""
    return re.sub(r"\W|START|BEGIN", "", open.upper()) == re.sub(r"\W|END", "", close.upper())


def switched(template: ChatTemplate) -> tuple[str, str] | None:
    """Return the delimiters of a reasoning that the template opens or leaves empty, as a variable says."""
    for switch in SWITCHES:
        if switch not in template.variables:
            continue
        on, off = (opened(template, {switch: value}) for value in (True, False))
        if on is None or off is None or on == off:
            continue
        begun, left_empty = OPENED.search(on), LEFT_EMPTY.search(off)
        if begun is not None and not off.endswith(begun[0]):
            return pair_of(begun)
        if left_empty is not None:
            return pair_of(left_empty)
    return None


def opened(template: ChatTemplate, variables: Mapping[str, Any]) -> str | None:
    """Return a short conversation with the opening of the answer; None if the template refuses it."""
    try:
        return template.probe([{"role": "user", "content": USER}], opens=True, variables=variables)
    except TemplateRefusedError:
        return None


def pair_of(found: re.Match[str]) -> tuple[str, str]:
    bracket, name, end = found.group("bracket", "name", "end")
    return f"{bracket}{name}{end}", f"{bracket}/{name}{end}"


def named(template: ChatTemplate) -> tuple[str, str] | None:
    """Return the known delimiters that the template's text names, or that are tokens."""
    tokens = set(template.added_tokens.values())
    for open, close in KNOWN:
        if (open in template.text and close in template.text) or {open, close} <= tokens:
            return open, close
    return None
