"""The bytes of a streamed answer, as they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.server.generation.events import ChoiceDelta, GenerationEvent, Resumed
from engine_server.server.generation.short_way import open_short_way
from engine_server.server.generation.token_reports import EventWriter, TokenReports, UsageReport

if TYPE_CHECKING:
    from engine_server.contract.wire.continuation import TokenReport
    from engine_server.server.generation.generation import Generation
    from engine_server.server.generation.render import Renderer
    from engine_server.server.http.event_stream import Line


class AnswerStream:
    """A generation's events as server-sent ones, with reports of their tokens if the router asks for them."""

    def __init__(
        self,
        generation: Generation,
        renderer: Renderer,
        first_report: TokenReport | None,
        *,
        reports_usage: bool,
    ) -> None:
        """first_report: the beginning of the first report, if the stream's tokens are reported.

        reports_usage: otherwise, report the usage before the end of the stream.
        """
        self._generation = generation
        self._renderer = renderer
        self.error = renderer.error
        self.wake = generation.wake
        self.aclose = generation.aclose
        self._reports = None if first_report is None else TokenReports(renderer, first_report)
        usage_report = UsageReport(renderer) if reports_usage else None
        self._writer: EventWriter = self._reports or usage_report or renderer

    @property
    def ended(self) -> bool:
        return self._generation.ended

    @property
    def end(self) -> bytes:
        """The bytes that follow the last event."""
        return self._writer.end

    async def next(self, line: Line | None) -> bytes:
        """Wait, and return the bytes of the events that happen together; b"" for none, and after `wake`.

        Meanwhile tokens go the short way to `line`, if the stream is in its plain state.
        """
        short_way = open_short_way(self._generation, self._renderer, self._reports, line)
        events = await self._generation.next()
        if short_way is not None and short_way.error is not None:
            raise short_way.error
        return await self._encode(events)

    async def _encode(self, events: list[Resumed | GenerationEvent]) -> bytes:
        rendered = []
        for event in events:
            if isinstance(event, Resumed):
                await self._replay(event)
                continue
            if isinstance(event, ChoiceDelta) and event.prompt is not None:
                await self._renderer.prepare(event)
            rendered.append(self._writer.event(event))
        return b"".join(rendered)

    async def _replay(self, resumed: Resumed) -> None:
        """Render what the client has already, as the renderer's state depends on it."""
        for delta in resumed.deltas:
            if delta.prompt is not None:
                await self._renderer.prepare(delta)
            self._renderer.event(delta)
        self._renderer.num_events = resumed.num_events
