"""The steady state of a stream: each read is one whole chunk with whole events, and nothing else happens.

Its protocols forward such reads, and only those that the parser and the reader of events would forward in the same way.
At any other read the engine's connection takes over where the stream is.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from engine_server.contract.wire.continuation import REPORT_PREFIX
from engine_server.router.http.upstream import EngineConnection
from engine_server.router.requests.api_events import DATA
from engine_server.router.requests.event_reader import REPORT
from engine_server.router.requests.journal import Journal

_SIZE = rb"([1-9a-f][0-9a-f]{0,5})\r\n"
# Fewer ids than are valid: those of more than nine digits are left to the decoder, which knows their range.
_ID = rb"(?:0|[1-9][0-9]{0,8})"
_IDS = rb"(%b(?:,%b)*)" % (_ID, _ID)
_REPORT = rb'%b\{"seed":(-?[0-9]{1,19}),"token_ids":\[%b\],"events":1\}\n' % (REPORT_PREFIX, _IDS)
# None of its lines is a comment.
_EVENT = rb"((?:[^:\n].*\n)+\n\r\n)"
_match_reported = re.compile(_SIZE + _REPORT + _EVENT).fullmatch
_match_size = re.compile(_SIZE).match
_LINE_END = b"\r\n"
_EVENT_END = b"\n\n\r\n"


class Attempt(Protocol):
    """The attempt whose answer is forwarded, as the watch sees it."""

    # Something has arrived.
    received: bool


class SteadyStream(asyncio.Protocol):
    """Has the transport of an engine's connection as long as the stream is in its steady state."""

    __slots__ = ("_attempt", "_connection", "_journal", "_seed", "_write")

    def __init__(
        self, connection: EngineConnection, attempt: Attempt, journal: Journal, write: Callable[[bytes], None]
    ) -> None:
        """Forward chunks by `write`, whose receiver understands chunks."""
        self._connection = connection
        self._attempt = attempt
        self._journal = journal
        self._seed = b"%d" % journal.seed
        self._write = write

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


class ReportedStream(SteadyStream):
    """Forwards chunks that have one event after its report, with the seed of the stream."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        found = _match_reported(data)
        if found is not None:
            size, seed, ids, event = found.groups()
            if seed == self._seed and _is_size_of(size, data):
                self._journal.record_tokens(ids, ids.count(b",") + 1, 1)
                self._attempt.received = True
                self._write(b"%x\r\n%b" % (len(event) - len(_LINE_END), event))
                return
        self._connection.take_back(data)


class UnreportedStream(SteadyStream):
    """Forwards chunks that have events without reports, as they come."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        found = _match_unreported(data)
        if found is not None and _is_size_of(found[1], data):
            start = found.end()
            # Empty events are no tokens, and an event of several lines is one.
            self._journal.events += min(data.count(b"\n\n", start), data.count(b"\n" + DATA, start - 1))
            self._attempt.received = True
            self._write(data)
        else:
            self._connection.take_back(data)


def steady_kind(data: bytes, *, reported: bool) -> type[SteadyStream] | None:
    """Return the kind of stream whose chunks are like `data`, one whole chunk; None if it is not in a steady state.

    reported: the stream has had no events without reports.
    """
    if _match_reported(data):
        return ReportedStream
    return UnreportedStream if not reported and _match_unreported(data) else None


def _match_unreported(data: bytes) -> re.Match[bytes] | None:
    """Return the match of the size of a chunk of events without reports; None for another one."""
    found = _match_size(data)
    return found if found and data.endswith(_EVENT_END, found.end()) and REPORT not in data else None


def _is_size_of(size: bytes, data: bytes) -> bool:
    """Return True if a chunk that begins with `size` ends with `data`."""
    return int(size, 16) + len(size) + 2 * len(_LINE_END) == len(data)
