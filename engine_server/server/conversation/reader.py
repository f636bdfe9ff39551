"""The reading of an answer: the parts of one choice, as its text arrives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine_server.requests.reasoning import Reasoning as ReasoningSpan
from engine_server.requests.reasoning import ReasoningTracker
from engine_server.server.conversation.calls.reading.events import (
    ArgumentText,
    CallEnded,
    CallEvent,
    CallReader,
    CallStarted,
    Malformed,
    Properties,
)
from engine_server.server.conversation.calls.reading.json_text import escape, is_json_object
from engine_server.server.conversation.layout import AnswerRegions, CallIds
from engine_server.server.conversation.regions import Body, Closed, Event, Opened, Region, RegionScanner
from engine_server.server.generation.answer_start import NO_START, AnswerStart
from engine_server.server.generation.events import Part, Reasoning, Text, TextKind, ToolCall
from engine_server.server.generation.parts import join_parts

CALL_ID_CHARACTERS = 24
SHORT_CALL_ID_CHARACTERS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """All that the reading of one request's answer depends on besides its text."""

    regions: AnswerRegions
    # The answer's id, from which the ids of its calls derive.
    answer_id: str
    start: AnswerStart = NO_START
    # The schemas of each tool's arguments; of the tools that may be called.
    properties: Properties = field(default_factory=dict)
    # Further calls are dropped.
    one_call: bool = False
    # The answer is not streamed, so that a malformed call becomes text although its beginning was a call's.
    whole: bool = False
    include_reasoning: bool = True
    # The form of the ids of calls that the chat template demands.
    call_ids: CallIds | None = None
    # A form is demanded of the content, which is the answer's last part.
    content_is_last: bool = False
    # White space before the first content is left out, since the grammar allows it for an answer that reasons.
    strips_beginning: bool = False
    # None for reasoning that isn't counted.
    reasoning: ReasoningSpan | None = None
    # The bytes of each token, for delimiters of the reasoning that are text.
    token_bytes: Sequence[bytes] = ()

    def call_id(self, choice: int, index: int, name: str) -> str:
        if self.call_ids == "functions":
            return f"functions.{name}:{index}"
        digest = hashlib.blake2b(f"{self.answer_id}/{choice}/{index}".encode()).hexdigest()
        return (
            digest[:SHORT_CALL_ID_CHARACTERS]
            if self.call_ids == "short"
            else f"call_{digest[:CALL_ID_CHARACTERS]}"
        )

    def reader(self, choice: int) -> AnswerReader:
        return AnswerReader(self, choice)

    def new_scanner(self) -> tuple[RegionScanner, list[Event]]:
        """Return the scanner of the answer's text, and the events of what the prompt has of it."""
        scanner = RegionScanner(self.regions.regions, self.names_tool, self.content_is_last)
        marked = self.regions.marks.marked
        return scanner, scanner.begin(marked(self.start.opening)) + scanner.begin(marked(self.start.prefill))

    def names_tool(self, region: Region, captures: Mapping[str, str], following: str) -> bool | None:
        """Return whether the text after a call's beginning names a tool that may be called; None: not yet known."""
        if "name" in captures:
            return captures["name"].strip() in self.properties
        for event in self.regions.readers[region.name](captures, self.properties).feed(following):
            return isinstance(event, CallStarted) and event.name in self.properties
        return None


class AnswerReader:
    """Splits one choice's text into parts.

    White space between two regions belongs to neither. A malformed call is text, in a stream unless its name was sent.
    """

    def __init__(self, answer: ReadAnswer, choice: int) -> None:
        self._answer = answer
        self._choice = choice
        self._marks = answer.regions.marks
        self._scanner, begun = answer.new_scanner()
        self._parts: list[Part] = []
        # The number of calls that were started.
        self._calls = 0
        # White space at the end of the region's text so far.
        self._space: list[str] = []
        # Only white space came since the last region.
        self._at_border = False
        # Nothing but white space came since the last call.
        self._follows_call = False
        # The reader of the region of calls in which the text is; None outside and after a malformed call.
        self._reader: CallReader | None = None
        # The text of that region; None once a call of it was sent.
        self._raw: list[str] | None = None
        # The calls in it, each with its fragments.
        self._region: list[list[ToolCall]] = []
        for event in begun:
            self._read(event)
        self._parts, self._space, self._reader = [], [], None
        self._at_border |= answer.strips_beginning
        self._tracker = (
            None if answer.reasoning is None else ReasoningTracker(answer.reasoning, answer.token_bytes)
        )

    def feed(self, text: str) -> list[Part]:
        return self._take(self._scanner.feed(self._marks.shown(text))) if text else []

    @property
    def plain_kind(self) -> TextKind | None:
        is_open = self._at_border or self._follows_call or self._space or self._reader is not None
        if is_open or not self._scanner.in_body:
            return None
        if self._scanner.kind == "reasoning":
            return Reasoning if self._answer.include_reasoning else None
        return Text if self._scanner.kind == "content" else None

    def passes(self, text: str) -> bool:
        if text[-1].isspace() or not self._marks.characters.isdisjoint(text):
            return False
        return self._scanner.passes(text)

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
        return self._tracker.count(token_ids) if self._tracker is not None else 0

    def _take(self, events: list[Event]) -> list[Part]:
        for event in events:
            self._read(event)
        parts, self._parts = self._parts, []
        return join_parts(parts) if len(parts) > 1 else parts

    def _read(self, event: Event) -> None:
        match event:
            case Opened(region=region, text=text) if region.follows_calls and not self._follows_call:
                self._add_text(False, self._marks.plain(text))
            case Opened(kind=kind, region=region, text=text, captures=captures):
                self._raw = [*self._space, text]
                self._space, self._at_border = [], True
                if kind == "call":
                    self._region = []
                    self._reader = self._answer.regions.readers[region.name](
                        captures, self._answer.properties
                    )
            case Body(text=text) if self._reader is not None:
                self._keep(text)
                self._read_calls(self._reader.feed(text))
            case Body(kind=kind, text=text):
                self._add_text(kind == "reasoning", self._marks.plain(text))
            case Closed(text=text, interrupted=interrupted) if self._reader is not None:
                self._keep(text)
                self._read_calls(self._reader.close(bool(text) or interrupted))
                self._follows_call = self._reader is not None
                if self._reader is not None and self._answer.whole:
                    self._parts += [part for call in self._region for part in call if self._is_wanted(part)]
                self._reader, self._at_border = None, True
            case Closed(kind="call", text=text):  # the end of a malformed one
                self._add_text(False, self._marks.plain(text))
            case Closed(kind="reasoning"):
                self._space, self._at_border = [], True

    def _add_text(self, reasoning: bool, text: str) -> None:
        if self._at_border:
            text = text.lstrip()
            if not text:
                return
            self._at_border = False
        self._follows_call = False
        visible = text.rstrip()
        if not visible:
            self._space.append(text)
            return
        joined = "".join([*self._space, visible]) if self._space else visible
        self._space = [text[len(visible) :]] if len(visible) < len(text) else []
        if not reasoning:
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
                    plain = self._marks.plain(name)
                    call_id = self._answer.call_id(self._choice, index, plain)
                    self._send(ToolCall(index, call_id, plain, ""))
                case ArgumentText(text):
                    self._send(ToolCall(self._calls - 1, None, None, self._marks.plain(text, escape)))
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
        self._parts.append(Text(self._marks.plain("".join(self._raw or ()))))
        self._raw, self._at_border = None, False


def arguments_of(call: list[ToolCall]) -> str:
    return "".join(part.arguments for part in call)
