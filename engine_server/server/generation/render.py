"""Rendering of a generation's events: as server-sent events while they happen, or as one body at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.responses import Response

from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.server.generation.events import (
    ChoiceDelta,
    GenerationEvent,
    GenerationFinished,
    TextKind,
    TokenCounts,
)
from engine_server.server.generation.token_reports import reported_usage
from engine_server.server.http.built_answer import BuiltAnswer
from engine_server.server.http.event_stream import StreamFormat

if TYPE_CHECKING:
    from engine_server.contract.wire.continuation import RepeatedLogprobs, Resume
    from engine_server.server.generation.generation import Generation

# Returns the event of a delta of one text, and changes its renderer as the renderer's `event` would.
TextWriter = Callable[[str], bytes]

encode = msgspec.json.Encoder().encode


class Renderer(StreamFormat, Protocol):
    """Renders one answer of an API; it may keep state between events."""

    # Number of events that the client has, for APIs that number them.
    num_events: int

    async def prepare(self, delta: ChoiceDelta) -> None:
        """Encode what is long of a choice's first event, before `event`, in several turns of the event loop."""
        return  # most renderers have nothing to prepare

    def resume(self, resume: Resume) -> None:
        """Continue a stream of another engine, before `event` gets what the client has already."""
        self.num_events = resume.events

    def event(self, event: GenerationEvent) -> bytes:
        """Return the server-sent events for `event`; b"" for none."""

    @property
    def repeated_logprobs(self) -> Sequence[RepeatedLogprobs]:
        """The log-probabilities of the last event that later ones repeat, which another engine can't compute."""
        return ()

    def text_writer(self, choice: int, kind: TextKind) -> TextWriter | None:
        """Return the writer of the one event of a delta with a text and nothing else, valid until the next `event`.

        The delta is one of a choice without an end that has had an event. None if more than the text changes the
        event, or the renderer; so it is for renderers that don't say.
        """
        return None

    async def body(self, choices: list[ChoiceDelta], counts: TokenCounts) -> bytes:
        """Return the JSON body of an answer that is not streamed; encode a long one in several turns of the event loop.

        choices: one delta for each choice, in order.
        """


def framed(pieces: Sequence[bytes]) -> TextWriter:
    """Return the writer of events that have the JSON of their text between the pieces."""

    def write(text: str) -> bytes:
        return encode(text).join(pieces)

    return write


async def whole_answer(generation: Generation, renderer: Renderer) -> Response:
    """Return the response with the whole answer, after the last event."""
    choices: list[ChoiceDelta] = []
    async with aclosing(generation):
        while not generation.ended:
            for event in await generation.next():
                if isinstance(event, ChoiceDelta):
                    choices.append(event)
                elif isinstance(event, GenerationFinished):
                    counts = event.counts
    choices.sort(key=lambda delta: delta.choice)
    headers = {ReportedUsage.NAME: reported_usage(counts).value()}
    body = await renderer.body(choices, counts)
    return BuiltAnswer(body, headers)
