"""Division of a stream into events, and the groups in which they are forwarded."""

import re

import msgspec

from engine_server.contract.wire.continuation import REPORT_PREFIX, TokenReport
from engine_server.contract.wire.errors import ErrorCode
from engine_server.router.requests.api_events import CREATED, DATA, created_response, reported_error
from engine_server.router.requests.journal import Journal

# An event or a group of events that is longer is not waited for.
MAX_HELD_BYTES = 4 << 20
COMMENT = b":"
# The beginning of a comment line for the router, of which some are reports.
OWN_COMMENT = REPORT_PREFIX.rstrip()
REPORT = REPORT_PREFIX + b"{"
# With any further empty lines, which are events of nothing.
EVENT_END = re.compile(rb"\n(?:\r?\n)+")
EVENT_ENDS = (b"\n\n", b"\n\r\n")
LONGEST_EVENT_END = 3

_decode_report = msgspec.json.Decoder(TokenReport).decode
_PREFIX_LENGTH = len(REPORT_PREFIX)


class EventReader:
    """Reads the stream of one engine: reports go to the journal, and events and comments to the client.

    The events of a report are forwarded together, so that the next engine can begin after any of them. An event without
    a report is forwarded on its own.
    """

    __slots__ = (
        "_group",
        "_held",
        "_journal",
        "_missing",
        "_report",
        "_searched",
        "broken",
        "error",
        "plain",
        "starved",
    )

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # Bytes that end within an event or a report, and the number of those that have no end of an event.
        self._held = bytearray()
        self._searched = 0
        # The report whose events are not complete, those that are, and the number of the others.
        self._report: TokenReport | None = None
        self._group = bytearray()
        self._missing = 0
        # Events have no reports: they are forwarded as they end.
        self.plain = False
        # The code of an error that the engine has reported and another one may not have. It is not forwarded.
        self.error: ErrorCode | None = None
        # Nothing more is read: after such an error, and if an event or a group is too large to wait for its end.
        self.broken = False
        # It is broken for lack of memory.
        self.starved = False

    def read(self, data: bytes) -> bytes:
        """Return the bytes to forward after the next piece of the stream. Raises ValueError for an invalid report."""
        if not self._held and self._report is None and data.endswith(EVENT_ENDS):
            if data.startswith(REPORT):
                start = data.find(b"\n") + 1
                report = _decode_report(data[_PREFIX_LENGTH:start])
                if has_events_alone(data, start, report.events):  # as a rule
                    self._journal.record(report)
                    return data[start:]
            elif self.plain and REPORT not in data:
                # Empty events are no tokens, and an event of several lines is one.
                self._journal.events += min(data.count(b"\n\n"), num_data_lines(data))
                return data
        return self._read_in_parts(data)

    @property
    def at_rest(self) -> bool:
        """True between two groups: nothing is held that waits for more."""
        return not self._held and self._report is None

    @property
    def begun(self) -> bool:
        """True if the client has an event."""
        return self._journal.begun

    @property
    def ended(self) -> bool:
        """True if the client has the last event."""
        return self._journal.ended

    def end(self) -> bytes | None:
        """Return the bytes to forward at the end of the stream; None if it ends before its last event."""
        if self._journal.ended or self.plain or not self._journal.events:
            return bytes(self._held) if self._report is None else None
        return None

    def _read_in_parts(self, data: bytes) -> bytes:
        held = self._held
        held += data
        forwarded = bytearray()
        start, searched = 0, len(held)
        while not self.broken:
            if held.startswith(OWN_COMMENT, start):
                end = held.find(b"\n", max(start, self._searched)) + 1
                if not end:
                    break
                self._begin_group(bytes(held[start:end]))
            else:
                match = EVENT_END.search(held, max(start, self._searched - LONGEST_EVENT_END))
                if match is None:
                    break
                end = match.end()
                if not self._journal.begun and held.startswith(CREATED, start):
                    following = EVENT_END.search(held, end)
                    if following is None:
                        searched = end
                        break
                    if self._breaks_off(reported_error(bytes(held[end : following.end()]))):
                        break
                    created = created_response(bytes(held[start:end]))
                    self._journal.id, self._journal.created = created.id, int(created.created_at)
                forwarded += self._read_event(bytes(held[start:end]))
            start = end
        del held[:start]
        self._searched = searched - start
        size = len(held) + len(self._group)
        self.starved = not self._journal.cover(size)
        if self.starved or size > MAX_HELD_BYTES:
            self.broken = True
            self._journal.forgo()
        return bytes(forwarded)

    def _begin_group(self, line: bytes) -> None:
        """Begin the group of a report, or ignore another comment for the router."""
        if not line.startswith(REPORT):
            return
        if self._report is not None:
            raise ValueError(f"a report follows another one that misses {self._missing} events")
        report = TokenReport.decode(line)
        if report.events:
            self._report, self._missing = report, report.events
        else:
            self._journal.record(report)

    def _read_event(self, event: bytes) -> bytes:
        """Return what is to be forwarded when an event has ended."""
        if event.startswith(COMMENT):
            return event
        if self._report is not None:
            self._group += event
            self._missing -= 1
            if self._missing:
                return b""
            self._journal.record(self._report)
            self._report, group, self._group = None, bytes(self._group), bytearray()
            return group
        if self.plain or self._journal.ended:
            self._journal.events += min(1, num_data_lines(event))
            return event
        error = reported_error(event)
        if self._breaks_off(error):
            return b""
        self._journal.ended = error is not None
        self.plain = error is None
        self._journal.record_unreported()
        return event

    def _breaks_off(self, error: str | None) -> bool:
        """Return True for an error that another engine may not have, after which nothing is read. error: its code."""
        code = ErrorCode.parse(error)
        if code is None or not code.breaks_off:
            return False
        self.error = code
        self.broken = True
        return True


def num_data_lines(data: bytes) -> int:
    """Return the number of lines with data in bytes that begin with a line."""
    return data.count(b"\n" + DATA) + data.startswith(DATA)


def has_events_alone(data: bytes, start: int, count: int) -> bool:
    """Return true if `data`, which ends with an event, has `count` events from `start` on and nothing else."""
    # Most events have one line; this is the fastest check.
    if count == 1 and data.find(b"\n", start) == len(data) - 2:
        return data[start] != COMMENT[0]
    return data.count(b"\n\n", start) == count > 0 and data.find(b"\n:", start - 1) < 0
