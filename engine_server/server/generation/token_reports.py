"""Reports of a stream's tokens to the router, which continues the stream elsewhere if this engine is lost."""

from __future__ import annotations

from typing import Protocol

import msgspec

from engine_server.contract.continuation import ReportedUsage, TokenReport
from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, GenerationFinished


class EventRenderer(Protocol):
    """The part of an API's renderer that streams need."""

    # Follows the last event.
    end: bytes

    def event(self, event: GenerationEvent) -> bytes: ...


class TokenReports:
    """Writes a report before the events of each step, rendered by the API's renderer.

    The end of the choice is reported together with the end of the stream: a router that has forwarded the one has
    forwarded the other, so that nothing remains to be continued.
    """

    def __init__(self, renderer: EventRenderer, first: TokenReport) -> None:
        """`first`: the answer's id, creation time and seed, without tokens."""
        self._renderer = renderer
        self._next = first
        # The last step, until the generation's end follows.
        self._token_ids: list[int] = []
        self._rendered = b""

    def event(self, event: GenerationEvent) -> bytes:
        self._rendered += self._renderer.event(event)
        first, usage, end = self._next, None, 0
        if isinstance(event, ChoiceDelta):
            self._token_ids += event.token_ids
            if event.finish is not None:
                return b""
        elif isinstance(event, GenerationFinished):
            usage = ReportedUsage(event.counts.prompt_tokens, event.counts.completion_tokens)
            end = len(self._renderer.end) > 0
        rendered, token_ids = self._rendered, self._token_ids
        self._rendered, self._token_ids = b"", []
        if not rendered and not token_ids and usage is None:
            return b""
        # A rendered event ends with an empty line, and JSON has no line ends.
        num_events = rendered.count(b"\n\n") + end
        cached = event.counts.cached_tokens if first.id is not None else None
        report = msgspec.structs.replace(
            first, token_ids=token_ids, events=num_events, cached_tokens=cached, usage=usage
        )
        self._next = TokenReport(report.seed)
        return report.encode() + rendered
