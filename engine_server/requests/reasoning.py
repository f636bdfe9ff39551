"""The reasoning of an answer: which tokens belong to it, and a limit of their number."""

import copy
from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec
import regex

from engine_server.contract.base.quoting import quote
from engine_server.requests import validation as valid
from engine_server.requests.errors import InvalidRequestError

# Bytes after a call's mark in which the name of its tool is looked for.
NAME_BYTES = 512


class Mark(msgspec.Struct, frozen=True):
    """A delimiter of an answer's reasoning.

    Raises InvalidRequestError, which names the parameter.
    """

    text: str
    # Tokens that write it, for reasoning that is ended by force.
    token_ids: list[int]
    # It is one token of the tokenizer; then only that token counts, and the same letters from other tokens are text.
    # Otherwise its text counts, in the bytes of the tokens, since its last piece may merge with what follows.
    exact: bool

    def __post_init__(self) -> None:
        valid.nonempty_text("text", self.text)
        valid.flag("exact", self.exact)
        count = len(valid.tokens("token_ids", self.token_ids))
        if count == 0 or (self.exact and count > 1):
            expected = "`list` of length 1" if self.exact else "`list` of length >= 1"
            valid.refuse_value("token_ids", self.token_ids, expected)


class Reasoning(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The reasoning of an answer.

    start: empty if reasoning can't begin in the answer.
    end: at least one mark, of which the first ends reasoning that is ended by force.
    calls: exact marks that begin a call, and so end the reasoning.
    called: pattern of the text after such a mark without which it begins no call, and is a part of the reasoning; None:
        it always begins one.
    inside: the prompt ends within the reasoning.
    first: it precedes all else of the answer, in which marks of text are text.
    budget: maximum number of tokens without the marks, of all the answer's reasoning together; None: no limit.

    Raises InvalidRequestError, which names the parameter.
    """

    start: list[Mark] = []
    end: list[Mark]
    calls: list[Mark] = []
    called: str | None = None
    inside: bool = False
    first: bool = False
    budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end", "calls"):
            setattr(self, name, valid.items(name, getattr(self, name), _mark))
        if not self.end:
            valid.refuse_value("end", self.end, "`list` of length >= 1")
        if not all(mark.exact for mark in self.calls):
            valid.refuse_value("calls", self.calls, "marks of one token")
        if self.called is not None:
            valid.text("called", self.called)
        self.inside = valid.flag("inside", self.inside)
        self.first = valid.flag("first", self.first)
        if self.budget is not None:
            self.budget = valid.integer("budget", self.budget, 0, valid.MAX_INT32)

    @property
    def marks(self) -> list[Mark]:
        return [*self.start, *self.end, *self.calls]

    @property
    def exact(self) -> bool:
        """True if each mark is one token, so that no bytes of tokens are needed to find them."""
        return all(mark.exact for mark in self.marks)

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all marks."""
        return [token_id for mark in self.marks for token_id in mark.token_ids]

    def check(self, token_bytes: Sequence[bytes] | None) -> None:
        """Raise InvalidRequestError for marks that can't be found in an output, or not be forced.

        token_bytes: the bytes that each token adds to a text; None: they are not known.
        """
        if self.exact:
            return
        if token_bytes is None:
            raise InvalidRequestError(
                "reasoning between marks of text needs a tokenizer and an end-of-sequence token, and this engine lacks "
                "one",
                "reasoning",
            )
        forced = self.end[0]
        written = b"".join(token_bytes[token_id] for token_id in forced.token_ids)
        if not forced.exact and forced.text.encode() not in written:
            raise InvalidRequestError(
                f"reasoning has tokens for {quote(forced.text)} that don't write it", "reasoning"
            )


class ReasoningTracker:
    """A position in an answer's reasoning: a function of the tokens alone, whatever their division into calls."""

    def __init__(self, reasoning: Reasoning, token_bytes: Sequence[bytes] = ()) -> None:
        """token_bytes: the bytes that each token of the vocabulary adds to a text; needed for marks of text alone."""
        self.inside = reasoning.inside
        # Number of tokens so far that belong to the reasoning, and of those of an end mark that has just begun.
        self.total = 0
        self._token_bytes = token_bytes
        self._starts = Marks.of(reasoning.start)
        self._called = reasoning.called if token_bytes else None
        self._ends = Marks.of([*reasoning.end, *(reasoning.calls if self._called is None else ())])
        # Tokens that may begin a call; the text since the latest, until it is clear; and the total before that one.
        self._calls = Marks.of(reasoning.calls if self._called is not None else ()).token_ids
        self._call: bytes | None = None
        self._before_call = 0
        self._forced = reasoning.end[0].token_ids
        self._forced_bytes = [] if reasoning.end[0].exact else _prefixes(self._forced, token_bytes)
        # The bytes since the latest mark that may begin the next one, and where tokens that were counted begin in them.
        self._tail = b""
        self._counted: list[int] = []
        texts = [*self._starts.texts, *self._ends.texts, *self._forced_bytes]
        self._kept = max(map(len, texts), default=0)
        self._first_bytes = frozenset(text[0] for text in texts if text)
        # The answer so far, which may be the beginning of a start mark; None once no reasoning may begin.
        self._head: bytes | None = None if reasoning.inside else b""
        self._only_first = reasoning.first and bool(self._starts.texts)

    def copy(self) -> Self:
        """Return a tracker at the same position, whose moves don't change this one."""
        tracker = copy.copy(self)
        tracker._counted = list(self._counted)
        return tracker

    def count(self, token_ids: Sequence[int]) -> int:
        """Read tokens; return how many of them belong to the reasoning, less those of an end mark that had begun."""
        before = self.total
        for token_id in token_ids:
            self.read(token_id)
        return self.total - before

    def read(self, token_id: int) -> None:
        """Move by a token."""
        if self.inside and token_id in self._calls:
            self._call, self._before_call = b"", self.total
            self._tail, self._counted = b"", []
            self.total += 1
            return
        self._read_marks(token_id)
        if self._call is not None:
            self._read_call(self._token_bytes[token_id])

    def _read_marks(self, token_id: int) -> None:
        """Move by a token that begins no call."""
        if token_id in (self._ends if self.inside else self._starts).token_ids:
            self.inside = not self.inside
            self._tail, self._counted = b"", []
            return
        if not self._kept:
            self.total += self.inside
        elif self.inside or not self._only_first or self._may_begin(self._token_bytes[token_id]):
            self._read_text(self._token_bytes[token_id])

    def next_of_end(self) -> int:
        """Return the token that goes on with the first end mark, of which the tokens may have the beginning."""
        for length in range(len(self._forced_bytes) - 1, -1, -1):
            if self._tail.endswith(self._forced_bytes[length]):
                return self._forced[length + 1]
        return self._forced[0]

    def _read_call(self, added: bytes) -> None:
        """Move by the bytes of a token behind a call's mark, which may have ended the reasoning there."""
        assert self._call is not None
        self._call += added
        found = regex.match(str(self._called).encode(), self._call, partial=True)
        if not self.inside or found is None or len(self._call) > NAME_BYTES:
            self._call = None
        elif not found.partial:
            self.inside, self.total = False, self._before_call
            self._call, self._tail, self._counted = None, b"", []

    def _may_begin(self, added: bytes) -> bool:
        """Return True if reasoning that is the first part of an answer may begin with the bytes of a token."""
        if self._head is None:
            return False
        head = (self._head + added).lstrip()
        begins = any(head.startswith(mark) for mark in self._starts.texts)
        self._head = (
            head if not begins and any(mark.startswith(head) for mark in self._starts.texts) else None
        )
        return begins or self._head is not None

    def _read_text(self, added: bytes) -> None:
        """Move by the bytes of a token, in which marks may begin and end."""
        if not self._tail and self._first_bytes.isdisjoint(added):
            self.total += self.inside
            return
        begin, counted = len(self._tail), self.inside
        text = self._tail + added
        self.total += counted
        if counted and added:
            self._counted.append(begin)
        while (found := (self._ends if self.inside else self._starts).find(text, begin)) is not None:
            if self.inside:  # tokens without a byte before the mark
                self.total -= sum(first >= found.begin for first in self._counted)
                counted = counted and (self._counted[-1:] != [begin] or begin < found.begin)
            text, begin, self._counted = text[found.end :], 0, []
            self.inside = not self.inside
            if self.inside and text and not counted:
                counted = True
                self._counted.append(0)
                self.total += 1
        dropped = max(0, len(text) - self._kept)
        self._tail = text[dropped:]
        if self._first_bytes.isdisjoint(self._tail):
            self._tail, self._counted = b"", []
        elif self._counted:
            self._counted = [first - dropped for first in self._counted if first >= dropped]


class FoundMark(NamedTuple):
    """The place of a mark in bytes."""

    begin: int
    end: int


class Marks(NamedTuple):
    """The marks that begin the reasoning, or end it."""

    token_ids: frozenset[int]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> Self:
        return cls(
            frozenset(mark.token_ids[0] for mark in marks if mark.exact),
            tuple(mark.text.encode() for mark in marks if not mark.exact),
        )

    def find(self, text: bytes, begin: int) -> FoundMark | None:
        """Return the mark that is complete first, of those that end behind `begin`; of several the longest."""
        found: FoundMark | None = None
        for mark in self.texts:
            place = text.find(mark, max(0, begin - len(mark) + 1))
            one = FoundMark(place, place + len(mark))
            if place >= 0 and (found is None or (one.end, one.begin) < (found.end, found.begin)):
                found = one
        return found


def _prefixes(token_ids: Sequence[int], token_bytes: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of the first token, of the first two, and so on, without those of all."""
    return [
        b"".join(token_bytes[token_id] for token_id in token_ids[:length])
        for length in range(1, len(token_ids))
    ]


def _mark(name: str, value: object) -> Mark:
    if not isinstance(value, Mark):
        valid.refuse_type(name, value, "Mark")
    return value
