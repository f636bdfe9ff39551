"""Rendering of a generation's events: as server-sent events while they happen, or as one body at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response

from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, Usage
from engine_server.server.http.event_stream import EventStream, StreamFormat


class Renderer(StreamFormat, Protocol):
    """Renders one answer of an API; it may keep state between events."""

    def event(self, event: GenerationEvent) -> bytes:
        """Return the server-sent events for `event`; b"" for none."""

    def body(self, choices: list[ChoiceDelta], usage: Usage) -> bytes:
        """Return the JSON body of an answer that is not streamed. choices: one delta for each choice, in order."""


async def respond(
    events: AsyncGenerator[GenerationEvent, None], renderer: Renderer, stream: bool
) -> Response:
    """Return the response that streams the events, or the whole answer after the last one."""
    if stream:
        return EventStream(stream_events(events, renderer), renderer)
    choices: list[ChoiceDelta] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ChoiceDelta):
                choices.append(event)
            else:
                usage = event.usage
    choices.sort(key=lambda delta: delta.choice)
    return Response(renderer.body(choices, usage), media_type="application/json")


async def stream_events(
    events: AsyncGenerator[GenerationEvent, None], renderer: Renderer
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            if rendered := renderer.event(event):
                yield rendered
