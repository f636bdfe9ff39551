"""The proof of a derived form: generated answers as the template prints them are read as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_server.engine.conversation.capabilities import REASONING_FIELDS
from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.calls.written import write_calls
from engine_server.server.conversation.derivation.answers import TOOLS, AnswerSource
from engine_server.server.conversation.derivation.pieces import marks_in
from engine_server.server.conversation.derivation.printed import PrintedAnswers
from engine_server.server.conversation.derivation.probes import Answer, Probes, UnknownFormError
from engine_server.server.conversation.formats import Entry, response_template
from engine_server.server.conversation.layout import AnswerRegions
from engine_server.server.conversation.reader import ReadAnswer
from engine_server.server.conversation.response_template import read_regions, strings
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall
from engine_server.structured.schemas.arguments import ArgumentTypes

# At a start; tests prove more.
PROOFS = 60
# Characters of the reason why a form is not proven.
MAX_REASON = 500
TYPES = {tool["function"]["name"]: ArgumentTypes(tool["function"]["parameters"]) for tool in TOOLS}


def prove(printed: PrintedAnswers, entry: Entry, proofs: int = PROOFS) -> None:
    """Raise UnknownFormError for a format in which a printed answer is not read as it is."""
    template, channels = response_template(entry)
    form = CallForm(**entry["call"])
    try:
        regions = read_regions({}, template, channels)
    except ValueError as error:
        raise UnknownFormError(f"the form is invalid: {error}") from None
    proof = Proof(printed, replace(printed.probes, tools=TOOLS), regions, form)
    source = AnswerSource(printed.shapes, forbidden_texts(entry), printed.most_calls, form.at_start)
    for answer in source.answers(proofs):
        failure = proof.failure(answer)
        if failure is not None:
            raise UnknownFormError(f"not proven: {failure}"[:MAX_REASON])


def forbidden_texts(entry: Entry) -> list[str]:
    """Return the texts of a form which nothing tells from its delimiters: those themselves, and unescaped quotes."""
    literals = [
        text.replace("\\", "") for key in ("call", "template", "channels") for text in strings(entry.get(key))
    ]
    marks = [
        mark
        for text in literals
        for mark in marks_in(text)
        if not re.search("KEY|NAME|VALUE|ARGUMENTS", mark)
    ]
    form = CallForm(**entry["call"])
    fixed = [form.before, form.beginning, form.middle, form.end, form.after]
    for tag in (form.tag, form.other_tag):
        if tag is not None:
            fixed += [tag.partition("KEY")[0], tag.partition("VALUE")[2]]
    # Quotes around a value of an attribute are optional.
    stripped = [text.strip().strip('"') for text in fixed if not marks_in(text)]
    whole = [text for text in stripped if len(text) > 2]
    reasoning = entry.get("template", {"fields": {}})["fields"].get(REASONING_FIELDS[0], {})
    unescaped = entry.get("unescaped", [])
    return list(dict.fromkeys([*marks, *whole, *strings(reasoning), *unescaped]))


@dataclass(frozen=True)
class Proof:
    """What a form is proven with. form: of its calls."""

    printed: PrintedAnswers
    probes: Probes
    regions: AnswerRegions
    form: CallForm

    def failure(self, answer: Answer) -> str | None:
        """Return how the reading of a printed answer differs from it; None if it is equal."""
        rendering = self.probes.render(answer)
        if rendering is None:
            return f"the template refuses {answer}"
        header, reasoning = rendering.header, self.printed.reasoning
        if answer.reasoning and reasoning is not None and reasoning.only_in_prompt:
            header = self.probes.opening
        text = self.printed.around.before_end(rendering.text)
        for pieces in ([text], text):
            read = self.read(pieces, header)
            if canonical(read) != canonical(answer):
                return f"{text!r} is read as {read}"
        if answer.calls:
            written = write_calls(self.form, answer.calls)
            read = self.read([written], "")
            if canonical(read) != canonical(Answer(calls=answer.calls)):
                return f"{written!r}, which a grammar allows, is read as {read}"
        return None

    def read(self, pieces: Sequence[str], header: str) -> Answer:
        """Return an answer that arrives in pieces, as it is read."""
        reading = ReadAnswer(
            regions=self.regions,
            answer_id="",
            start=AnswerStart(header),
            properties=TYPES,
            whole=len(pieces) == 1,
        )
        reader = reading.reader(0)
        parts = [part for piece in pieces for part in reader.feed(piece)] + reader.end()
        return Answer(joined(parts, Text), joined(parts, Reasoning), tuple(calls_in(parts)))


def joined(parts: Sequence[Part], kind: type[Text | Reasoning]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind)).strip()


def calls_in(parts: Sequence[Part]) -> Iterator[tuple[str, Any]]:
    calls: dict[int, list[ToolCall]] = {}
    for part in parts:
        if isinstance(part, ToolCall):
            calls.setdefault(part.index, []).append(part)
    for fragments in calls.values():
        text = "".join(part.arguments for part in fragments)
        try:
            yield fragments[0].name or "", json.loads(text)
        except ValueError:
            yield fragments[0].name or "", text


def canonical(answer: Answer) -> str:
    """Return an answer as text in which values of different types differ."""
    return json.dumps([answer.content, answer.reasoning, answer.calls], sort_keys=True)
