"""The short way of a stream's tokens: from a step of the engine to the client's connection in one function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_server.contract.wire.continuation import TokenReport

if TYPE_CHECKING:
    from engine_server.server.generation.choice_reader import ChoiceReader
    from engine_server.server.generation.generation import Generation, Tally
    from engine_server.server.generation.render import Renderer, TextWriter
    from engine_server.server.generation.token_reports import TokenReports
    from engine_server.server.http.event_stream import Line


class ShortWay:
    """The way of the tokens of a stream of which all but the text of the next event is known.

    It writes what the long way would, by an output, the choice's reader and the API's renderer; it takes what needs no
    more than that, and leaves the rest to them.
    """

    def __init__(
        self, reader: ChoiceReader, write: TextWriter, seed: int | None, tally: Tally, line: Line
    ) -> None:
        """write: makes the event of a text. seed: that of reports; None if tokens are not reported."""
        self._parser = reader.parser
        self._held = reader.held
        self._write = write
        self._seed = seed
        self._tally = tally
        self._line = line
        # What ended the stream while it was written.
        self.error: Exception | None = None

    def take(self, token_ids: list[int], text: str) -> bool:
        """Write the event of a step's tokens; return False if they have to go the long way."""
        try:
            if not self._line.is_free or (text and not self._parser.passes(text)):
                return False
            self._tally.completion_tokens += len(token_ids)
            self._tally.reasoning_tokens += self._parser.count_reasoning(token_ids)
            self._held += token_ids
            if text:
                event = self._write(text)
                if self._seed is not None:
                    event = TokenReport(self._seed, self._held, 1).encode() + event
                self._held.clear()
                self._line.write_now(event)
            return True
        except Exception as error:  # any: the step's next tokens are another stream's
            self.error = error
            return False


def open_short_way(
    generation: Generation, renderer: Renderer, reports: TokenReports | None, line: Line | None
) -> ShortWay | None:
    """Let the next tokens go the short way, and return it; None for a stream that has to go the long way now."""
    reader = generation.only_reader
    if reader is None or line is None or not (reports is None or reports.has_begun):
        return None
    kind = reader.plain_kind
    write = None if kind is None else renderer.text_writer(reader.choice, kind)
    if write is None:
        return None
    way = ShortWay(reader, write, None if reports is None else reports.seed, generation.tally, line)
    generation.divert(way.take)
    return way
