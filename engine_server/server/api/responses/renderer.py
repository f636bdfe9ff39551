"""Rendering of the responses API's answer, streamed or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from engine_server.contract.wire.continuation import RepeatedLogprobs, ReportedLogprob, Resume
from engine_server.contract.wire.stream_ends import FailureBody, ResponseEvent, named_event, responses_end
from engine_server.requests.logprobs import Logprob, SampleLogprobs
from engine_server.server.api.chat.logprobs import TokenLogprob, to_logprobs
from engine_server.server.api.openai_answer import PLACE, PLACE_JSON, finite
from engine_server.server.api.responses.body import (
    Content,
    CustomCallItem,
    FunctionCallItem,
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    RawMessage,
    ReasoningItem,
    ReasoningText,
    RequestEcho,
    ResponseBody,
    ResponseUsage,
    to_item,
)
from engine_server.server.api.responses.stream_events import (
    ArgumentsDelta,
    ArgumentsDone,
    InputDelta,
    InputDone,
    ItemEvent,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    StreamEvent,
    TextDelta,
    TextDone,
)
from engine_server.server.api.responses.tools import ToolTarget, custom_input
from engine_server.server.generation.events import (
    ChoiceDelta,
    Finish,
    GenerationEvent,
    GenerationFinished,
    Part,
    Reasoning,
    Text,
    TextKind,
    TokenCounts,
    ToolCall,
)
from engine_server.server.generation.parts import join_parts
from engine_server.server.generation.render import Renderer, TextWriter
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.output.token_texts import TokenTexts
    from engine_server.requests.logprobs import TokenLogprobs

encode = msgspec.json.Encoder().encode

# Stands for the number of an event of which the rest is wanted; others are greater.
NUMBER = -1


class ResponseRenderer(Renderer):
    """Renders an answer; a streamed one has every item's beginning, deltas and end, in order."""

    end = b""

    def __init__(
        self,
        response_id: str,
        created: int,
        model: str,
        echo: RequestEcho,
        top_logprobs: int,
        targets: Mapping[str, ToolTarget],
        texts: TokenTexts,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        """targets: the tools by the names that a model may call them.

        decode: returns the text of tokens, for an answer with prompt and output as the model sees them.
        """
        self._id, self._created, self._model = response_id, created, model
        # The end of every body, encoded once.
        self._echo = b"," + encode(echo)[1:]
        self._top_logprobs = top_logprobs
        self._targets = targets
        self._texts = texts
        self._decode = decode
        # The tokens so far, where the answer has them.
        self._prompt: list[RawMessage] = []
        self._output_token_ids: list[int] = []
        # The number of the next event.
        self.num_events = 0
        # The items so far, of which the last one may be open.
        self._items: list[OutputItem] = []
        self._open: ItemStream | None = None
        # The log-probabilities of the last event that its item repeats, and the item's index.
        self._repeated: tuple[int, SampleLogprobs] = (0, [])
        # Of a stream that is continued, those of each item that the client has.
        self._resumed: dict[int, list[TokenLogprobs]] = {}
        self._finish: Finish | None = None

    async def prepare(self, delta: ChoiceDelta) -> None:
        if self._decode is not None and delta.prompt is not None:
            token_ids = delta.prompt.token_ids
            text = await run_by_size(len(token_ids), partial(self._decode, token_ids))
            self._prompt = [RawMessage(text, token_ids)]

    def resume(self, resume: Resume) -> None:
        super().resume(resume)
        for one in resume.logprobs:
            entries = {
                entry.token_id: Logprob(entry.logprob, entry.rank, entry.text) for entry in one.entries
            }
            self._resumed.setdefault(one.item, []).append(entries)

    @property
    def repeated_logprobs(self) -> list[RepeatedLogprobs]:
        item, tokens = self._repeated
        return [RepeatedLogprobs(item, reported(entries)) for entries in tokens]

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            body = self._end_body(self._items, event.counts)
            return self._send(self._response_event(f"response.{body.status}", body))
        self._keep_tokens(event)
        events = b""
        if self.num_events == 0:
            body = self._body()
            events += self._send(self._response_event("response.created", body))
            events += self._send(self._response_event("response.in_progress", body))
        logprobs = self._logprobs(event.logprobs)
        self._repeated = (0, [])
        parts = event.parts
        if logprobs and not parts and self._open is not None and self._open.takes(Text("")):
            parts = [Text("")]  # a token without text, which whole answers list, too
        for part in parts:
            if self._open is None or not self._open.takes(part):
                events += self._close("completed") + self._begin(part)
            assert self._open is not None
            # The log-probabilities of an event belong to its text.
            found, logprobs = (logprobs, []) if isinstance(part, Text) else ([], logprobs)
            if found:
                self._repeated = (self._open.index, event.logprobs or [])
            self._open.add(part, found)
            if delta := self._open.delta(part, found, self.num_events):
                events += self._send(delta)
        if event.finish is not None:
            self._finish = event.finish
            events += self._close(item_status(event.finish))
        return events

    def text_writer(self, choice: int, kind: TextKind) -> TextWriter | None:
        stream, place = self._open, kind(PLACE)
        if self._decode is not None or stream is None or not stream.takes(place):
            return None
        delta = stream.delta(place, [], NUMBER)
        assert delta is not None, "a text has an event"
        start, between, end = pieces_of(named_event(delta.type, delta))

        def write(text: str) -> bytes:
            event = b"%b%d%b%b%b" % (start, self.num_events, between, encode(text), end)
            stream.add(kind(text), [])
            self.num_events += 1
            return event

        return write

    async def body(self, choices: list[ChoiceDelta], counts: TokenCounts) -> bytes:
        (choice,) = choices
        assert choice.finish is not None, "an answer that is not streamed has one event"
        self._finish = choice.finish
        self._keep_tokens(choice)
        await self.prepare(choice)
        # The reasoning's tokens come first.
        logprobs = self._logprobs((choice.logprobs or [])[counts.reasoning_tokens :])
        items: list[OutputItem] = []
        for index, part in enumerate(parts := join_parts(choice.parts)):
            status = item_status(choice.finish) if index == len(parts) - 1 else "completed"
            items.append(to_item(part, self._id, index, status, logprobs, self._targets))
            if isinstance(part, Text):
                logprobs = []
        return self._encode(self._end_body(items, counts))

    def error(self, error: ApiError) -> bytes:
        """Return the error, and the response's failure with the items so far."""
        if self._open is not None:
            self._open.join("incomplete")

        def response(failure: FailureBody | None) -> bytes:
            body = self._body()
            if failure is not None:
                body.status, body.error, body.output = "failed", failure, self._items
            return self._encode(body)

        return responses_end(self.num_events, error.code, error.message, error.param, response)

    def _body(self) -> ResponseBody:
        return ResponseBody(id=self._id, created_at=self._created, model=self._model)

    def _end_body(self, items: list[OutputItem], counts: TokenCounts) -> ResponseBody:
        """Return the body at the end of the answer."""
        assert self._finish is not None, "the choice ends before the generation"
        body = self._body()
        body.output, body.usage = items, ResponseUsage.of(counts)
        body.status = item_status(self._finish)
        if body.status == "incomplete":
            body.incomplete_details = IncompleteDetails()
        if self._decode is not None:
            body.input_messages = self._prompt
            body.output_messages = [RawMessage(self._decode(self._output_token_ids), self._output_token_ids)]
        return body

    def _keep_tokens(self, delta: ChoiceDelta) -> None:
        if self._decode is not None:
            self._output_token_ids += delta.token_ids

    def _logprobs(self, tokens: Sequence[TokenLogprobs] | None) -> list[TokenLogprob]:
        found = to_logprobs(tokens, self._top_logprobs, self._texts)
        if found is None:
            return []
        for token in found.content:
            # This API's clients have no null here.
            for entry in (token, *token.top_logprobs):
                entry.bytes = entry.bytes or []
        return found.content

    def _begin(self, part: Part) -> bytes:
        """Open an item for `part`, and return its first events."""
        empty = ToolCall(part.index, part.id, part.name, "") if isinstance(part, ToolCall) else type(part)("")
        index = len(self._items)
        item = to_item(empty, self._id, index, "in_progress", [], self._targets)
        self._items.append(item)
        self._open = ItemStream(item, index, part, self._logprobs(self._resumed.pop(index, None)))
        bare = msgspec.structs.replace(item, content=[]) if hasattr(item, "content") else item
        events = self._send(ItemEvent("response.output_item.added", self.num_events, index, bare))
        if content := self._open.content:
            events += self._send(self._part_event("response.content_part.added", content))
        return events

    def _close(self, status: ItemStatus) -> bytes:
        """Close the open item, and return its last events."""
        if self._open is None:
            return b""
        stream = self._open
        stream.join(status)
        events = b""
        if isinstance(stream.item, CustomCallItem):
            # Its text is known once the JSON around it is complete.
            events = self._send(
                InputDelta(
                    sequence_number=self.num_events,
                    item_id=stream.item.id,
                    output_index=stream.index,
                    delta=stream.item.input,
                )
            )
        events += self._send(stream.done(self.num_events))
        if content := stream.content:
            events += self._send(self._part_event("response.content_part.done", content))
        events += self._send(
            ItemEvent("response.output_item.done", self.num_events, stream.index, stream.item)
        )
        self._open = None
        return events

    def _part_event(self, kind: str, content: Content) -> PartEvent:
        assert self._open is not None
        return PartEvent(
            type=kind,
            sequence_number=self.num_events,
            item_id=self._open.item.id,
            output_index=self._open.index,
            part=content,
        )

    def _response_event(self, kind: str, body: ResponseBody) -> ResponseEvent:
        return ResponseEvent(kind, self.num_events, msgspec.Raw(self._encode(body)))

    def _encode(self, body: ResponseBody) -> bytes:
        return encode(body)[:-1] + self._echo

    def _send(self, event: StreamEvent) -> bytes:
        self.num_events += 1
        return named_event(event.type, event)


class ItemStream:
    """The open item of a streamed answer."""

    def __init__(self, item: OutputItem, index: int, first: Part, logprobs: list[TokenLogprob]) -> None:
        """logprobs: those that the client has."""
        self.item = item
        self.index = index
        self._first = first
        self._texts: list[str] = []
        self._logprobs = logprobs

    @property
    def content(self) -> Content | None:
        return None if isinstance(self.item, FunctionCallItem | CustomCallItem) else self.item.content[0]

    def takes(self, part: Part) -> bool:
        """Return true if `part` belongs to this item."""
        if isinstance(part, ToolCall) and isinstance(self._first, ToolCall):
            return part.index == self._first.index
        return type(part) is type(self._first)

    def add(self, part: Part, logprobs: list[TokenLogprob]) -> None:
        """Add the text of `part` to the item's, and its log-probabilities."""
        self._texts.append(part.arguments if isinstance(part, ToolCall) else part.text)
        self._logprobs += logprobs

    def delta(self, part: Part, logprobs: list[TokenLogprob], number: int) -> StreamEvent | None:
        """Return the event of `part`; None for a part whose text comes at the item's end."""
        match part:
            case Text():
                return TextDelta(
                    sequence_number=number,
                    item_id=self.item.id,
                    output_index=self.index,
                    delta=part.text,
                    logprobs=logprobs,
                )
            case Reasoning():
                return ReasoningDelta(
                    sequence_number=number, item_id=self.item.id, output_index=self.index, delta=part.text
                )
            case ToolCall():
                if isinstance(self.item, CustomCallItem):
                    return None
                return ArgumentsDelta(
                    sequence_number=number,
                    item_id=self.item.id,
                    output_index=self.index,
                    delta=part.arguments,
                )

    def join(self, status: ItemStatus) -> None:
        """Complete the item with all its text."""
        text = "".join(self._texts)
        self.item.status = status
        match self.item:
            case MessageItem():
                self.item.content = [OutputText(text, [], self._logprobs)]
            case ReasoningItem():
                self.item.content = [ReasoningText(text)]
            case FunctionCallItem():
                self.item.arguments = text
            case CustomCallItem():
                self.item.input = custom_input(text)

    def done(self, number: int) -> StreamEvent:
        """Return the event with the whole text; `join` was called before."""
        match self.item:
            case MessageItem(id=item_id, content=[content]):
                return TextDone(
                    sequence_number=number,
                    item_id=item_id,
                    output_index=self.index,
                    text=content.text,
                    logprobs=content.logprobs,
                )
            case ReasoningItem(id=item_id, content=[reasoning]):
                return ReasoningDone(
                    sequence_number=number, item_id=item_id, output_index=self.index, text=reasoning.text
                )
            case FunctionCallItem():
                return ArgumentsDone(
                    sequence_number=number,
                    item_id=self.item.id,
                    output_index=self.index,
                    name=self.item.name,
                    arguments=self.item.arguments,
                )
            case CustomCallItem():
                return InputDone(
                    sequence_number=number,
                    item_id=self.item.id,
                    output_index=self.index,
                    input=self.item.input,
                )
        raise AssertionError("an item has one content")


def reported(entries: TokenLogprobs) -> list[ReportedLogprob]:
    """Return a token's log-probabilities as they are reported to the router."""
    return [
        ReportedLogprob(token_id, finite(one), one.rank, one.decoded_token)
        for token_id, one in entries.items()
    ]


def pieces_of(event: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the bytes of an event before its number, which is NUMBER, between it and its text, PLACE, and after it."""
    name = b'"sequence_number":'
    start, rest = event.split(b"%b%d" % (name, NUMBER))
    between, end = rest.split(PLACE_JSON)
    return start + name, between, end


def item_status(finish: Finish) -> ItemStatus:
    """Return the status of an answer, and of its last item, at its end."""
    return "incomplete" if finish.reason in ("length", "timeout") else "completed"
