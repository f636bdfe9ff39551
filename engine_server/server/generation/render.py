"""Rendering of a generation's events: as server-sent events while they happen, or as one body at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response

from engine_server.contract.continuation import TokenReport
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


class Renderer(StreamFormat, Protocol):
    """Renders one answer of an API; it may keep state between events."""

    # Number of events so far, for APIs that number them.
    num_events: int

    def event(self, event: GenerationEvent) -> bytes:
        """Return the server-sent events for `event`; b"" for none."""

    def body(self, choices: list[ChoiceDelta], usage: Usage) -> bytes:
        """Return the JSON body of an answer that is not streamed. choices: one delta for each choice, in order."""


async def whole_answer(
    events: AsyncGenerator[Resumed | GenerationEvent, None], renderer: Renderer
) -> Response:
    """Return the response with the whole answer, after the last event."""
    choices: list[ChoiceDelta] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ChoiceDelta):
                choices.append(event)
            elif isinstance(event, GenerationFinished):
                usage = event.usage
    choices.sort(key=lambda delta: delta.choice)
    reported = f"prompt={usage.prompt_tokens}, completion={usage.completion_tokens}"
    return Response(renderer.body(choices, usage), headers={USAGE: reported}, media_type="application/json")


def stream_answer(
    events: AsyncGenerator[Resumed | GenerationEvent, None],
    renderer: Renderer,
    keep_alive: float,
    first_report: TokenReport | None,
) -> Response:
    """Return the response that streams the events.

    keep_alive: seconds without a byte after which a comment is sent. first_report: the answer's id, creation time and
    seed, if its tokens are reported to the router.
    """
    reports = TokenReports(renderer, first_report) if first_report else None
    return EventStream(stream_events(events, renderer, reports), renderer, keep_alive)


async def stream_events(
    events: AsyncGenerator[Resumed | GenerationEvent, None], renderer: Renderer, reports: TokenReports | None
) -> AsyncGenerator[bytes, None]:
    render = reports.event if reports else renderer.event
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Resumed):
                for delta in event.deltas:  # the client has these, and the renderer's state depends on them
                    renderer.event(delta)
                renderer.num_events = event.num_events
            elif rendered := render(event):
                yield rendered
