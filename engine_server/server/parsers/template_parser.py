"""The parser of an answer with reasoning and tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transformers.utils.chat_parsing.response_templates import ResponseTemplate

from engine_server.requests.marks import mark_character
from engine_server.requests.reasoning import Reasoning as ReasoningMarks
from engine_server.requests.reasoning import ReasoningTracker
from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall
from engine_server.server.generation.parts import join_parts
from engine_server.server.parsers.call_events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallReader,
    CallStarted,
    Malformed,
)
from engine_server.server.parsers.call_format import Properties, ReaderFactory
from engine_server.server.parsers.json_text import is_json_object
from engine_server.server.parsers.regions import Body, Closed, Event, Opened, RegionScanner

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
CALL_ID_CHARACTERS = 24
SHORT_CALL_ID_CHARACTERS = 9


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The parsing of one request's answer."""

    template: ResponseTemplate
    # The readers of the template's fields of calls.
    readers: Mapping[str, ReaderFactory]
    # The answer's id, from which the ids of its calls derive.
    answer_id: str
    prompt: str
    properties: Properties = field(default_factory=dict)
    # Further calls are dropped.
    one_call: bool = False
    # The answer is not streamed, so that a malformed call becomes text although its beginning was a call's.
    whole: bool = False
    include_reasoning: bool = True
    short_call_ids: bool = False
    # The texts of the tokens that the engine shows as characters.
    mark_texts: Sequence[str] = ()
    # The reasoning's delimiters, if they are known.
    reasoning: ReasoningMarks | None = None
    token_bytes: Sequence[bytes] = ()

    def call_id(self, choice: int, index: int) -> str:
        digest = hashlib.blake2b(f"{self.answer_id}/{choice}/{index}".encode()).hexdigest()
        return (
            digest[:SHORT_CALL_ID_CHARACTERS]
            if self.short_call_ids
            else f"call_{digest[:CALL_ID_CHARACTERS]}"
        )

    def parser(self, choice: int) -> TemplateParser:
        return TemplateParser(self, choice)


class TemplateParser:
    """Splits one choice's text by a response template.

    White space between two regions belongs to neither. A malformed call is text, in a stream unless its name was sent.
    """

    def __init__(self, answer: ParsedAnswer, choice: int) -> None:
        self._answer = answer
        self._choice = choice
        self._scanner = RegionScanner(answer.template, answer.prompt)
        self._parts: list[Part] = []
        # The number of calls that were started.
        self._calls = 0
        # White space at the end of the region's text so far.
        self._space: list[str] = []
        # Only white space came since the last region.
        self._at_border = False
        # The reader of the region of calls in which the text is; None outside and after a malformed call.
        self._reader: CallReader | None = None
        # The text of that region; None once a call of it was sent.
        self._raw: list[str] | None = None
        # The calls in it, each with its fragments.
        self._region: list[list[ToolCall]] = []
        for event in self._scanner.prefix_events:
            self._read(event)
        self._parts, self._space, self._reader = [], [], None
        self._mark_texts = {ord(mark_character(index)): text for index, text in enumerate(answer.mark_texts)}
        marks = answer.reasoning
        self._tracker = None if marks is None else ReasoningTracker(marks, answer.token_bytes)

    def feed(self, text: str) -> list[Part]:
        return self._take(self._scanner.feed(text.translate(self._mark_texts))) if text else []

    def end(self) -> list[Part]:
        parts = self._take(self._scanner.finish())
        if self._space:
            parts.append(Text("".join(self._space)))
        return parts

    @property
    def retained_characters(self) -> int:
        """The number of characters that are kept until a delimiter is found."""
        held = [*(self._raw or ()), *self._space]
        return self._scanner.retained_characters + sum(map(len, held))

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        return 0 if self._tracker is None else self._tracker.count(token_ids)

    def _take(self, events: list[Event]) -> list[Part]:
        for event in events:
            self._read(event)
        parts, self._parts = self._parts, []
        return join_parts(parts)

    def _read(self, event: Event) -> None:
        make = self._answer.readers.get(event.field)
        match event:
            case Opened(text=text, captures=captures):
                self._raw = [*self._space, text]
                self._space, self._at_border = [], True
                if make is not None:
                    self._region = []
                    self._reader = make(captures, self._answer.properties)
            case Body(text=text) if self._reader is not None:
                self._keep(text)
                self._read_calls(self._reader.feed(text))
            case Body(field=field, text=text):
                self._add_text(field, text)
            case Closed(text=text) if self._reader is not None:
                self._keep(text)
                self._read_calls(self._reader.close(bool(text)))
                if self._reader is not None and self._answer.whole:
                    self._parts += [part for call in self._region for part in call if self._is_wanted(part)]
                self._reader, self._at_border = None, True
            case Closed(field=field, text=text) if make is not None:
                self._add_text(field, text)
            case Closed(field=field) if field in REASONING_FIELDS:
                self._space, self._at_border = [], True

    def _add_text(self, field: str, text: str) -> None:
        if self._at_border:
            text = text.lstrip()
            if not text:
                return
            self._at_border = False
        visible = text.rstrip()
        if not visible:
            self._space.append(text)
            return
        self._space.append(visible)
        joined = "".join(self._space)
        self._space = [text[len(visible) :]]
        if field not in REASONING_FIELDS:
            self._parts.append(Text(joined))
        elif self._answer.include_reasoning:
            self._parts.append(Reasoning(joined))

    def _read_calls(self, events: list[CallEvent]) -> None:
        for event in events:
            match event:
                case CallStarted(name):
                    index = self._calls
                    self._calls += 1
                    self._region.append([])
                    self._send(ToolCall(index, self._answer.call_id(self._choice, index), name, ""))
                case ArgumentText(text):
                    self._send(ToolCall(self._calls - 1, None, None, text))
                case CallEnded():
                    if self._answer.whole and not is_json_object(arguments_of(self._region[-1])):
                        return self._return_region()
                case Malformed():
                    if self._answer.whole or not self._region:
                        return self._return_region()
        return None

    def _send(self, part: ToolCall) -> None:
        if self._answer.whole:
            self._region[-1].append(part)
        elif self._is_wanted(part):
            self._parts.append(part)
            self._raw = None

    def _is_wanted(self, call: ToolCall) -> bool:
        return call.index == 0 or not self._answer.one_call

    def _keep(self, text: str) -> None:
        if self._raw is not None:
            self._raw.append(text)

    def _return_region(self) -> None:
        """Return the region's text as the answer's, and what follows in it."""
        self._calls -= len(self._region)
        self._region, self._reader = [], None
        self._parts.append(Text("".join(self._raw or ())))
        self._raw, self._at_border = None, False


def arguments_of(call: list[ToolCall]) -> str:
    return "".join(part.arguments for part in call)
