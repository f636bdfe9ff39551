"""Text in llguidance's variant of Lark's syntax."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from engine_server.server.conversation.marks import MarkTokens, any_of, longest_first

# Stand in the places of a call's id, of its number in the answer, and of the type of an argument that is no string.
IDENTIFIER, INDEX, TYPE = "IDENTIFIER", "INDEX", "TYPE"
HOLES = {
    IDENTIFIER: "/[a-zA-Z0-9]{9}/",
    INDEX: "/[0-9]{1,3}/",
    TYPE: "/(number|boolean|object|array|null)/",
}
FIND_HOLE = re.compile(f"({'|'.join(HOLES)})")
JSON_LEXEME = re.compile(r'"[^"]*"|[{}\[\]:,]|[^"{}\[\]:,]+')


@dataclass(frozen=True)
class Literals:
    """Text in Lark's syntax, in which marks are tokens."""

    marks: MarkTokens

    def write(self, text: str) -> str:
        """Return the sequence that is a text."""
        pieces, end = [], 0
        for found in self._find.finditer(text):
            pieces += [quoted(text[end : found.start()])] * (found.start() > end)
            pieces.append(f"<[{self.marks.token_of(found[0])}]>")
            end = found.end()
        return " ".join(pieces + [quoted(text[end:])] * (end < len(text)))

    def write_json(self, text: str) -> str:
        """Return the sequence that is a beginning of JSON, in the lexemes of JSON, which a form may share."""
        return " ".join(map(quoted, JSON_LEXEME.findall(text)))

    def begins_with_token(self, text: str) -> bool:
        return self._find.match(text) is not None

    def first_token(self, text: str) -> tuple[str, str, str]:
        """Return the text before the first token in a text, that token's, and the rest."""
        found = self._find.search(text)
        return (text, "", "") if found is None else (text[: found.start()], found[0], text[found.end() :])

    @cached_property
    def _find(self) -> re.Pattern[str]:
        return any_of(map(re.escape, () if self.marks.spelled else longest_first(self.marks.texts)))


def pattern_of(text: str) -> str:
    """Return a text as a part of a regular expression of Lark."""
    return re.escape(text).replace("\\\n", r"\n").replace("/", r"\/")


def quoted(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def fixed_text(text: str, literals: Literals, before: str = "") -> str:
    """Return a text of a form as a part of a rule, with the terminals of what differs from call to call.

    before: text that is a part of no form.
    """
    first, *rest = FIND_HOLE.split(text)
    parts = [literals.write(before + first), *(HOLES.get(part) or literals.write(part) for part in rest)]
    return " ".join(part for part in parts if part)


def text_before(name: str, terminal: str, closing: str, literals: Literals) -> list[str]:
    """Return the rules of a text that ends with the first occurrence of its closing. terminal: that of the text."""
    before, token, after = literals.first_token(closing)
    if not token:
        return [f"{name}[lazy]: {terminal} {quoted(closing)}"]
    end = literals.write(token + after)  # which no text has
    if not before:
        return [f"{name}: {terminal} {end}"]
    ended = f"{name.upper()}_ENDED"
    return [f"{name}: {ended} {end}", f"{ended}: {terminal} {quoted(before)}"]
