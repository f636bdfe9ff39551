"""Rendering of a generation's events: as server-sent events while they happen, or as one body at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response

from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, GenerationFinished
from engine_server.server.http.event_stream import EventStream


class StreamRenderer(Protocol):
    """Renders one streamed answer; it may keep state between events."""

    def render(self, event: GenerationEvent) -> bytes:
        """Return the server-sent events for `event`; b"" for none."""


class BodyRenderer(Protocol):
    """Renders one answer that is not streamed."""

    def __call__(self, choices: list[ChoiceDelta], finished: GenerationFinished) -> bytes:
        """Return the JSON body. choices: one delta for each choice, in order."""


async def stream_events(
    events: AsyncGenerator[GenerationEvent, None], renderer: StreamRenderer
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            if rendered := renderer.render(event):
                yield rendered


def stream_response(events: AsyncGenerator[GenerationEvent, None], renderer: StreamRenderer) -> Response:
    """Return the response that sends events while they happen."""
    return EventStream(stream_events(events, renderer))


async def body_response(events: AsyncGenerator[GenerationEvent, None], renderer: BodyRenderer) -> Response:
    """Wait for the last event and return the whole answer."""
    choices: list[ChoiceDelta] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ChoiceDelta):
                choices.append(event)
            else:
                finished = event
    choices.sort(key=lambda delta: delta.choice)
    return Response(renderer(choices, finished), media_type="application/json")
