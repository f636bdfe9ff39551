"""The places where a text has added tokens, which a tokenizer takes out of it before it normalizes the rest."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from tokenizers import AddedToken


class AddedTokens:
    """Added tokens that are found in a text as it is, the leftmost first and the longest of those that begin there.

    A text may be cut before one without changing its tokens: what comes before it ends there in any case, and what
    comes after depends on nothing before. One that takes the blanks before it is found, but gives no cut.
    """

    def __init__(self, tokens: Collection[AddedToken]) -> None:
        contents = sorted(token.content for token in tokens if token.content)
        self._pattern = re.compile(longest_of(contents)) if contents else None
        self._inseparable = frozenset(token.content for token in tokens if token.lstrip)

    def cuts(self, text: str, least: int) -> Iterator[int]:
        """Yield places where `text` may be cut to parts of at least `least` characters; the last may be shorter."""
        if self._pattern is None:
            return
        last = 0
        for match in self._pattern.finditer(text):
            start = match.start()
            if start - last >= least and match[0] not in self._inseparable:
                yield start
                last = start


def longest_of(texts: Sequence[str]) -> str:
    """Return a pattern that matches the longest of some texts that begins at a place.

    It is a trie of groups: the time for a place grows with the length of the texts, not with their number, as that of a
    plain alternation does. texts: sorted, none of them empty.
    """
    branches = []
    for _, group in groupby(texts, key=itemgetter(0)):
        members = list(group)
        common = os.path.commonprefix(members)  # noqa: RUF071  (of characters)
        rests = [member[len(common) :] for member in members]
        longer = [rest for rest in rests if rest]
        branch = re.escape(common)
        if longer:
            branch += longest_of(longer) + ("?" if len(longer) < len(rests) else "")
        branches.append(branch)
    return f"(?:{'|'.join(branches)})"
