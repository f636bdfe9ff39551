"""Generated answers with which a form is proven. They are the same in every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from engine_server.server.conversation.derivation.probes import Answer, tool

SEED = 20
PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "note_2": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "options": {"type": "object"},
}
TOOLS = [tool(name, PROPERTIES) for name in ("get_weather", "write-file2", "now")]
NAMES = [one["function"]["name"] for one in TOOLS]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\u2028"]
LETTERS = ["a", "word", "Köln", "日本", "\U0001f642", "0", "-1", "true", "None", "null"]
SIGNS = ['"', "'", "\\", "\\n", "{", "}", "[", "]", "<", ">", "</", "|", "&amp;", ",", ":", "{}", '{"a":1}']
FOREIGN_CALLS = [
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "<function=now>\n<parameter=city>\n1\n</parameter>\n</function>",
    "[TOOL_CALLS]now[ARGS]{}",
    '<invoke name="now"></invoke>',
]
SCALARS: dict[str, list[Any]] = {
    "integer": [0, 7, -12, 10**15],
    "number": [0.5, -2.25, 3, 1e-3],
    "boolean": [True, False],
}
ATTEMPTS = 20


class AnswerSource:
    """Generates answers.

    shapes: the parts that an answer may have together. forbidden: texts that no part may have, since nothing tells
    them from the delimiters that they are. most_calls: the greatest number of calls. at_start: an answer that begins
    with an object is a call.
    """

    def __init__(
        self, shapes: Sequence[frozenset[str]], forbidden: Sequence[str], most_calls: int, at_start: bool
    ) -> None:
        self._random = Random(SEED)
        self._shapes = shapes
        self._forbidden = [text for text in forbidden if text]
        self._most_calls = most_calls
        self._at_start = at_start
        halves = [half for text in self._forbidden for half in (text[:-1], text[1:], text[: len(text) // 2])]
        self._words = [*LETTERS, *SIGNS, *SPACES, *FOREIGN_CALLS, *(half for half in halves if half.strip())]

    def answers(self, count: int) -> Iterator[Answer]:
        for number in range(count):
            shape = self._shapes[number % len(self._shapes)]
            content = self._line() if "content" in shape else ""
            reasoning = self._line() if "reasoning" in shape else ""
            calls = range(self._random.randint(1, self._most_calls)) if "calls" in shape else ()
            yield Answer(content, reasoning, tuple(self._call() for _ in calls))

    def _line(self) -> str:
        """Return text without outer white space, which belongs to no part."""
        text = self._text().strip()
        is_call = self._at_start and text.startswith("{")
        return text if text and not is_call and self._is_free(text) else "Plain text."

    def _text(self) -> str:
        """Return a text of some words, which may be empty."""
        for _ in range(ATTEMPTS):
            text = "".join(self._random.choices(self._words, k=self._random.randint(0, 6)))
            if self._is_free(text):
                return text
        return ""

    def _is_free(self, text: str) -> bool:
        return not any(part in text for part in self._forbidden)

    def _call(self) -> tuple[str, dict[str, Any]]:
        keys = self._random.sample(list(PROPERTIES), self._random.randint(0, 4))
        return self._random.choice(NAMES), {key: self._value(PROPERTIES[key]["type"]) for key in keys}

    def _value(self, kind: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self._random.choice(SCALARS[kind])
        if kind == "string":
            return self._text()
        kinds = ["string", *SCALARS, *(["array", "object"] if depth < 2 else [])]
        values = [
            self._value(self._random.choice(kinds), depth + 1) for _ in range(self._random.randint(0, 2))
        ]
        return values if kind == "array" else dict(zip(("x", "y_z"), values, strict=False))
