"""Incremental matching of stop strings: an Aho-Corasick automaton over characters.

Source: A. V. Aho, M. J. Corasick, "Efficient string matching: an aid to bibliographic search", CACM 18(6), 1975.
Building takes time linear in the total length of the stop strings; matching is linear in the length of the text,
for any number of stop strings and any division of the text into pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string, and the index just after it in the piece of text that completed it."""

    stop: str
    end: int


class StopAutomaton:
    """The states of all stop strings of a request, shared by its completions.

    A state is a prefix of a stop string; 0 is the empty prefix. Where several stop strings end at the same character,
    the longest one is found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        # By state: the state of its longest proper suffix that is a prefix of a stop string.
        self.fallback: list[int] = [0]
        # By state: the longest stop string that ends there.
        self.stop: list[str | None] = [None]
        # By state: the length of its longest suffix that may still become a stop string.
        self.partial: list[int] = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for length, character in enumerate(stop, 1):
            following = self.next[state].get(character)
            if following is None:
                following = self.next[state][character] = len(self.next)
                self.next.append({})
                self.fallback.append(0)
                self.stop.append(None)
                self.partial.append(length)
            state = following
        self.stop[state] = stop

    def _link(self) -> None:
        """Set the fallbacks breadth first: those of shorter prefixes are known."""
        states = list(self.next[0].values())
        for state in states:
            for character, following in self.next[state].items():
                self.fallback[following] = self.step(self.fallback[state], character)
                states.append(following)
            fallback = self.fallback[state]
            self.stop[state] = self.stop[state] or self.stop[fallback]
            if not self.next[state]:
                self.partial[state] = self.partial[fallback]

    def step(self, state: int, character: str) -> int:
        """Return the state after `character`: amortized over a text, one fallback a character at most."""
        while (following := self.next[state].get(character)) is None:
            if state == 0:
                return 0
            state = self.fallback[state]
        return following


class StopMatcher:
    """One text's position in the automaton."""

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = 0

    @property
    def partial(self) -> int:
        """The number of characters at the end of the text that may be the beginning of a stop string."""
        return self._automaton.partial[self._state]

    def restart(self) -> None:
        """Forget the text so far, of which no stop string is to have a part."""
        self._state = 0

    def feed(self, piece: str) -> None:
        """Read text in which stop strings are not matched."""
        for character in piece:
            self._state = self._automaton.step(self._state, character)

    def find(self, piece: str) -> StopMatch | None:
        """Read text up to the first character that completes a stop string."""
        automaton = self._automaton
        if not self._state and automaton.next[0].keys().isdisjoint(piece):
            return None
        for end, character in enumerate(piece, 1):
            self._state = automaton.step(self._state, character)
            if stop := automaton.stop[self._state]:
                return StopMatch(stop, end)
        return None
