"""The proof of a derived form: generated answers as the template prints them are read as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_server.server.conversation.calls.form import IDENTIFIER, INDEX, CallForm
from engine_server.server.conversation.derivation.answers import TOOLS
from engine_server.server.conversation.derivation.calls import AroundContent
from engine_server.server.conversation.derivation.probes import IDS, Answer, Probes
from engine_server.server.conversation.layout import AnswerRegions
from engine_server.server.conversation.reader import ReadAnswer
from engine_server.server.generation.answer_start import AnswerStart
from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall
from engine_server.structured.schemas.arguments import ArgumentTypes

TYPES = {tool["function"]["name"]: ArgumentTypes(tool["function"]["parameters"]) for tool in TOOLS}


@dataclass(frozen=True)
class Proof:
    """What a form is proven with. form: of its calls."""

    probes: Probes
    regions: AnswerRegions
    form: CallForm
    around: AroundContent
    # The prompt alone has the beginning of the reasoning.
    reasons_from_prompt: bool = False

    def failure(self, answer: Answer) -> str | None:
        """Return how the reading of a printed answer differs from it; None if it is equal."""
        rendering = self.probes.render(answer)
        if rendering is None:
            return f"the template refuses {answer}"
        header = self.probes.opening if answer.reasoning and self.reasons_from_prompt else rendering.header
        text = self.around.before_end(rendering.text)
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


def write_calls(form: CallForm, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return calls as a grammar of their form lets a model write them."""
    texts = [write_call(form, index, *call) for index, call in enumerate(calls)]
    return form.before + form.separator.join(texts) + form.after


def write_call(form: CallForm, index: int, name: str, arguments: Mapping[str, Any]) -> str:
    beginning, middle, end = (
        text.replace(INDEX, str(index)).replace(IDENTIFIER, IDS[0])
        for text in (form.beginning, form.middle, form.end)
    )
    written = json.dumps(arguments, ensure_ascii=False)
    if form.tag is not None:
        written = "".join(write_argument(form, *argument) for argument in arguments.items())
    return f"{beginning}{name}{middle}{written}{end}"


def write_argument(form: CallForm, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    tag = form.tag if is_text else form.other_tag or form.tag
    assert tag is not None
    written = value if is_text else json.dumps(value, ensure_ascii=False)
    return tag.replace("KEY", key, 1).replace("VALUE", written, 1)
