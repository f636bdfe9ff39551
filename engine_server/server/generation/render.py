"""Rendering of a generation's events: as server-sent events while they happen, or as one body at the end."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, Self

from starlette.responses import Response

from engine_server.contract.continuation import ReportedUsage, TokenReport
from engine_server.contract.headers import USAGE
from engine_server.server.generation.events import (
    ChoiceDelta,
    GenerationEvent,
    GenerationFinished,
    Resumed,
    Usage,
)
from engine_server.server.generation.token_reports import TokenReports
from engine_server.server.http.event_stream import EventStream, StreamFormat

if TYPE_CHECKING:
    from engine_server.server.generation.generate import GenerationEvents


class Renderer(StreamFormat, Protocol):
    """Renders one answer of an API; it may keep state between events."""

    # Number of events so far, for APIs that number them.
    num_events: int

    def event(self, event: GenerationEvent) -> bytes:
        """Return the server-sent events for `event`; b"" for none."""

    def body(self, choices: list[ChoiceDelta], usage: Usage) -> bytes:
        """Return the JSON body of an answer that is not streamed. choices: one delta for each choice, in order."""


class RenderedEvents:
    """An asynchronous iterator of a generation's events as server-sent ones, in pieces that are written at once."""

    def __init__(self, events: GenerationEvents, renderer: Renderer, reports: TokenReports | None) -> None:
        self._events = events
        self._renderer = renderer
        self._render = reports.event if reports else renderer.event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            events = await self._events.__anext__()
            if rendered := b"".join([self._event(event) for event in events]):
                return rendered

    async def aclose(self) -> None:
        await self._events.aclose()

    def _event(self, event: Resumed | GenerationEvent) -> bytes:
        if not isinstance(event, Resumed):
            return self._render(event)
        for delta in event.deltas:  # the client has these, and the renderer's state depends on them
            self._renderer.event(delta)
        self._renderer.num_events = event.num_events
        return b""


async def whole_answer(events: GenerationEvents, renderer: Renderer) -> Response:
    """Return the response with the whole answer, after the last event."""
    choices: list[ChoiceDelta] = []
    async with aclosing(events):
        async for together in events:
            for event in together:
                if isinstance(event, ChoiceDelta):
                    choices.append(event)
                elif isinstance(event, GenerationFinished):
                    usage = event.usage
    choices.sort(key=lambda delta: delta.choice)
    reported = ReportedUsage(usage.prompt_tokens, usage.completion_tokens)
    headers = {USAGE: reported.header()}
    return Response(renderer.body(choices, usage), headers=headers, media_type="application/json")


def stream_answer(
    events: GenerationEvents,
    renderer: Renderer,
    keep_alive: float,
    first_report: TokenReport | None,
) -> Response:
    """Return the response that streams the events.

    keep_alive: seconds without a byte after which a comment is sent. first_report: the answer's id, creation time and
    seed, if its tokens are reported to the router.
    """
    reports = TokenReports(renderer, first_report) if first_report else None
    return EventStream(RenderedEvents(events, renderer, reports), renderer, keep_alive)
