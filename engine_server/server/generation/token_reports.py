"""Reports of a stream's tokens to the router, which continues the stream elsewhere if this engine is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine_server.contract.wire.continuation import RepeatedLogprobs, TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.server.generation.events import (
    ChoiceDelta,
    GenerationEvent,
    GenerationFinished,
    TokenCounts,
)


class EventWriter(Protocol):
    """Writes the events of a stream."""

    @property
    def end(self) -> bytes:
        """The bytes that follow the last event."""

    def event(self, event: GenerationEvent) -> bytes: ...


class EventRenderer(EventWriter, Protocol):
    """The part of an API's renderer that reports need."""

    @property
    def repeated_logprobs(self) -> Sequence[RepeatedLogprobs]:
        """The log-probabilities of the last event that later ones repeat."""


class TokenReports:
    """Writes a report before the events of each step, rendered by the API's renderer.

    The end of the choice is reported together with the end of the stream: a router that has forwarded the one has
    forwarded the other, so that nothing remains to be continued.
    """

    def __init__(self, renderer: EventRenderer, first: TokenReport) -> None:
        """`first`: the answer's id, creation time and seed, without tokens."""
        self._renderer = renderer
        self.seed = first.seed
        # None once it is written.
        self._first: TokenReport | None = first
        # The last step, until the generation's end follows.
        self._token_ids: list[int] = []
        self._rendered = b""

    @property
    def end(self) -> bytes:
        return self._renderer.end

    @property
    def has_begun(self) -> bool:
        """True once the first report is written, after which reports have the seed, tokens and events alone."""
        return self._first is None

    def event(self, event: GenerationEvent) -> bytes:
        self._rendered += self._renderer.event(event)
        usage, end = None, 0
        logprobs: Sequence[RepeatedLogprobs] = ()
        if isinstance(event, ChoiceDelta):
            self._token_ids += event.token_ids
            if event.finish is not None:
                return b""
            logprobs = self._renderer.repeated_logprobs
        elif isinstance(event, GenerationFinished):
            usage = reported_usage(event.counts)
            end = len(self._renderer.end) > 0
        rendered, token_ids = self._rendered, self._token_ids
        self._rendered, self._token_ids = b"", []
        if not rendered and not token_ids and usage is None:
            return b""
        # A rendered event ends with an empty line, and JSON has no line ends.
        num_events = rendered.count(b"\n\n") + end
        report = TokenReport(self.seed, token_ids, num_events, list(logprobs), usage=usage)
        if self._first is not None:
            report = msgspec.structs.replace(
                self._first,
                token_ids=token_ids,
                events=num_events,
                logprobs=list(logprobs),
                usage=usage,
                cached_tokens=event.counts.cached_tokens,
            )
            self._first = None
        return report.encode() + rendered


class UsageReport:
    """Writes one report, of the usage, before the end of a stream that can't be continued."""

    def __init__(self, renderer: EventWriter) -> None:
        self._renderer = renderer
        # None until the last event.
        self._usage: ReportedUsage | None = None

    @property
    def end(self) -> bytes:
        end = self._renderer.end
        if self._usage is None:
            return end
        # A report has a seed, which is of no use here.
        return TokenReport(seed=0, events=end.count(b"\n\n"), usage=self._usage).encode() + end

    def event(self, event: GenerationEvent) -> bytes:
        if isinstance(event, GenerationFinished):
            self._usage = reported_usage(event.counts)
        return self._renderer.event(event)


def reported_usage(counts: TokenCounts) -> ReportedUsage:
    """Return the numbers of tokens of a whole answer as they are reported to the router."""
    return ReportedUsage(counts.prompt_tokens, counts.completion_tokens)
