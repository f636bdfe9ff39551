"""The regions of an answer's text: reasoning, tool calls, and content, which is all other text.

Delimiters are searched for in marked text as it arrives. A possible beginning of one is held back. The search for
partial matches is that of transformers' parser of response templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Kind = Literal["reasoning", "call", "content"]

# Consumed text is dropped once it has this many characters, so that a long answer costs linear time.
CONSUMED_CHARACTERS = 256
# Every delimiter is searched for in all of the text that is there, after each region anew.
PIECE_CHARACTERS = 1024
# Consumed characters that are kept for a pattern that looks behind.
LOOKBEHIND = 64
# Characters after a call's beginning in which the name of its tool is looked for.
NAME_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Delimiter:
    """The beginning or the end of a region, as a compiled pattern of the `regex` module, for partial matches."""

    pattern: Any
    # Its texts; None for a pattern.
    literals: tuple[str, ...] | None = None
    # One of the texts is the beginning of another.
    can_extend: bool = False

    @property
    def first_characters(self) -> set[str]:
        """The characters with which it begins; of a pattern the first, if that is in no class."""
        return {text[0] for text in self.literals or [re.sub(r"^(?:\(\?:)+", "", self.pattern.pattern)]}

    @property
    def certain_beginnings(self) -> frozenset[str] | None:
        """The characters of which each match has one first; None for a pattern that doesn't begin with a plain one."""
        return certain_beginnings(self.pattern.pattern, self.literals)

    def may_grow(self, match: Any, length: int) -> bool:
        """Return True if a match may become another one with text after the first `length` characters."""
        if match.partial:
            return True
        if match.end() != length:
            return False
        return match.start() == length or self.literals is None or self.can_extend


@lru_cache(1024)
def certain_beginnings(pattern: str, literals: tuple[str, ...] | None) -> frozenset[str] | None:
    if literals is not None:
        return frozenset(text[0] for text in literals)
    has_alternatives = "|" in re.sub(r"\\.", "", pattern)
    is_plain = re.match(r"[^\\\[\](){}.*+?^$|](?![*?{])", pattern)
    return frozenset(pattern[0]) if is_plain and not has_alternatives else None


@dataclass(frozen=True, slots=True)
class Region:
    """A kind of region."""

    # The name of its field.
    name: str
    kind: Kind
    # None for the content that needs no beginning.
    open: Delimiter | None = None
    # None for a region that lasts until the answer's end.
    close: Delimiter | None = None
    # The beginning is a token, so that it begins a call within the reasoning too.
    interrupts: bool = False
    # Chooses the kind by the groups of the beginning, which it may change; None: it is always the same.
    route: Callable[[Mapping[str, str]], tuple[Kind, Mapping[str, str]]] | None = None
    # It begins a call only of a tool that may be called; otherwise it is text.
    only_known_tools: bool = False
    # It is a beginning alone, which may follow a call, and is text elsewhere.
    follows_calls: bool = False


CONTENT = Region("content", "content")


@dataclass(frozen=True, slots=True)
class Opened:
    """The start of a region. `text` is the delimiter, and `captures` are its named groups."""

    kind: Kind
    region: Region
    text: str
    captures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """Text of a region."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a region. `text` is the delimiter, empty where the answer ended or another region begins."""

    kind: Kind
    text: str
    # Another region begins.
    interrupted: bool = False


Event = Opened | Body | Closed


class Found(NamedTuple):
    """A delimiter in the text: the beginning of a region, or the end of the one in which the text is."""

    region: Region
    opens: bool
    match: Any

    @property
    def priority(self) -> tuple[int, int, bool, str]:
        """The earliest is taken; of several the longest, and rather a beginning than an end."""
        start, end = self.match.span()
        return start, start - end, not self.opens, self.region.name


class RegionScanner:
    """Splits the text of one answer into regions, in linear time and with bounded memory.

    names_tool: returns whether the text after a call's beginning names a tool that the answer may call, from the
    beginning's groups and the text; None if more text is needed. Such a call ends the reasoning in which it begins.
    content_is_last: once content has begun, nothing begins another region.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        names_tool: Callable[[Region, Mapping[str, str], str], bool | None] = lambda *_: False,
        content_is_last: bool = False,
    ) -> None:
        self._opening = [region for region in regions if region.open is not None]
        self._content = next((region for region in regions if region.open is None), CONTENT)
        self._names_tool = names_tool
        self._content_is_last = content_is_last
        self._content_begun = False
        self._buffer = ""
        self._pos = 0
        # Beginnings of calls before it are text of the reasoning.
        self._refused = 0
        self._region = self._content
        self.kind: Kind = "content"
        # Text came since the last delimiter.
        self._has_body = False
        self._beginnings = self._watched_beginnings()

    @property
    def retained_characters(self) -> int:
        """The number of characters that are kept."""
        return len(self._buffer)

    @property
    def in_region(self) -> bool:
        """True within a region that a delimiter has begun."""
        return self._region is not self._content

    def begin(self, text: str) -> list[Event]:
        """Return the events of what the prompt has of the answer; nothing of it is held back.

        The turn's beginning, which is content for a scanner, may precede the reasoning that the prompt opens.
        """
        events: list[Event] = []
        self._buffer += text
        content_is_last, self._content_is_last = self._content_is_last, False
        self._read(events, ended=True)
        self._content_is_last = content_is_last
        self._drop(self._pos)
        self._has_body = self._content_begun = False
        return events

    def feed(self, text: str) -> list[Event]:
        """Return the events that marked text completes; a possible beginning of a delimiter is held back."""
        events: list[Event] = []
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            is_body = self._pos == len(self._buffer) and self._has_no_delimiter(piece)
            self._buffer += piece
            if is_body:
                self._add_body(events, len(self._buffer))
            else:
                self._read(events, ended=False)
            if self._pos > CONSUMED_CHARACTERS:
                self._drop(self._pos - LOOKBEHIND)
        return events

    @property
    def in_body(self) -> bool:
        """True if nothing is held back, and the characters of text tell if a delimiter may be in it."""
        return self._pos == len(self._buffer) and self._beginnings is not None

    def passes(self, text: str) -> bool:
        """Read text that is the body of the region, and return True; read nothing of text with a possible delimiter.

        Called only if `in_body`.
        """
        if len(text) > PIECE_CHARACTERS or not self._has_no_delimiter(text):
            return False
        self._buffer += text
        self._pass_body(text)
        if self._pos > CONSUMED_CHARACTERS:
            self._drop(self._pos - LOOKBEHIND)
        return True

    def finish(self) -> list[Event]:
        """Return the events that were held back; no text follows."""
        events: list[Event] = []
        self._read(events, ended=True)
        if self._region is not self._content:
            events.append(Closed(self.kind, ""))
        return events

    def _read(self, events: list[Event], ended: bool) -> None:
        while True:
            found, pending = self._find(ended)
            if found is None:
                self._add_body(events, pending)
                return
            start, end = found.match.span()
            if not found.opens and start == end == self._pos and not self._has_body:
                return  # an empty end of what is empty, which would be found for ever
            self._add_body(events, start)
            self._pos = end
            if found.opens:
                self._open(events, found.region, found.match)
            else:
                events.append(Closed(self.kind, found.match.group()))
                self._region, self.kind = self._content, "content"
            self._has_body = False
            self._beginnings = self._watched_beginnings()

    def _open(self, events: list[Event], region: Region, match: Any) -> None:
        if self._region is not self._content:
            events.append(Closed(self.kind, "", interrupted=True))
        captures = captures_of(match)
        self._region, self.kind = region, region.kind
        if region.route is not None:
            self.kind, captures = region.route(captures)
        events.append(Opened(self.kind, region, match.group(), captures))
        if region.follows_calls:  # it is its beginning alone
            events.append(Closed(self.kind, ""))
            self._region, self.kind = self._content, "content"

    def _add_body(self, events: list[Event], end: int) -> None:
        if end > self._pos:
            text = self._buffer[self._pos : end]
            events.append(Body(self.kind, text))
            self._pass_body(text)

    def _pass_body(self, text: str) -> None:
        """Move to the end of text of the region, which follows in the buffer."""
        self._content_begun |= self.kind == "content" and not text.isspace()
        self._pos += len(text)
        self._has_body = True

    def _find(self, ended: bool) -> tuple[Found | None, int]:
        """Return the next delimiter, if it is certain, and the place up to which the text is."""
        candidates = []
        pending = len(self._buffer)
        for region, opens, delimiter in self._watched():
            start = max(self._pos, self._refused) if opens and self.kind == "reasoning" else self._pos
            match = delimiter.pattern.search(self._buffer, start, partial=not ended)
            is_checked = opens and (self.kind == "reasoning" or region.only_known_tools)
            while match is not None and not match.partial and is_checked:
                named = self._is_call(region, match, ended)
                if named is None:
                    pending = min(pending, match.start())
                if named is not False:
                    break
                if self.kind == "reasoning":
                    self._refused = match.end()
                match = delimiter.pattern.search(self._buffer, match.end(), partial=not ended)
            if match is None or (opens and self._follows_content(match)):
                continue
            if not ended and delimiter.may_grow(match, len(self._buffer)):
                pending = min(pending, match.start())
            else:
                candidates.append(Found(region, opens, match))
        best = min(candidates, key=lambda found: found.priority, default=None)
        # Another that begins no later may still be completed, and then counts.
        if best is not None and not ended and best.match.start() >= pending:
            best = None
        return best, pending

    def _follows_content(self, match: Any) -> bool:
        """Return True if a beginning is text, since content that is the answer's last part precedes it."""
        if not self._content_is_last or self.kind != "content":
            return False
        return self._content_begun or bool(self._buffer[self._pos : match.start()].strip())

    def _is_call(self, region: Region, match: Any, ended: bool) -> bool | None:
        following = self._buffer[match.end() : match.end() + NAME_CHARACTERS]
        named = self._names_tool(region, captures_of(match), following)
        return False if named is None and (ended or len(following) == NAME_CHARACTERS) else named

    def _watched(self) -> Iterator[tuple[Region, bool, Delimiter]]:
        """Yield the delimiters that may follow: each a region, True for its beginning, and the delimiter."""
        for region in self._opening:
            is_own = region is self._region and self.kind == "call"
            begins = self._region is self._content or (
                region.interrupts and (self.kind == "reasoning" or is_own)
            )
            if begins and region.open is not None:
                yield region, True, region.open
        if self._region.close is not None:
            yield self._region, False, self._region.close

    def _watched_beginnings(self) -> frozenset[str] | None:
        """Return the characters of which every delimiter that may follow begins with one; None if there are others."""
        found: set[str] = set()
        for _, _, delimiter in self._watched():
            if delimiter.certain_beginnings is None:
                return None
            found |= delimiter.certain_beginnings
        return frozenset(found)

    def _has_no_delimiter(self, text: str) -> bool:
        """Return True if text has neither a delimiter nor the beginning of one, which most text shows at once."""
        return self._beginnings is not None and self._beginnings.isdisjoint(text)

    def _drop(self, consumed: int) -> None:
        self._buffer = self._buffer[consumed:]
        self._pos -= consumed
        self._refused = max(0, self._refused - consumed)


def captures_of(match: Any) -> Mapping[str, str]:
    """Return the named groups of a match that have text."""
    return {name: text for name, text in match.groupdict().items() if text is not None}
