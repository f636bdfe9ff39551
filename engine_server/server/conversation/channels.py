"""Answers in channels: each part of an answer has a header with its role, recipient, channel and type.

<|start|>ROLE [to=RECIPIENT] [<|channel|>NAME [to=RECIPIENT]] [[<|constrain|>]TYPE]<|message|>BODY<|end|>
Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_server.server.conversation.regions import Kind

# Characters of one part of a header.
FIELD_CHARACTERS = 256


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The delimiters of headers, and the use of the channels."""

    start: str
    channel: str
    type: str
    body: str
    end: list[str]
    role: str = "assistant"
    # Those of the reasoning and of text for the user; text of all others is content too.
    reasoning: str
    final: str
    # A recipient is a tool that is called; without calls its part is content.
    calls: bool = True

    @property
    def header_pattern(self) -> str:
        """The pattern of a header, with the group `header`. An answer begins after the role."""
        marks = [self.start, self.channel, self.type, self.body, *self.end]
        field = f"(?:(?!{'|'.join(map(re.escape, marks))}).){{0,{FIELD_CHARACTERS}}}?"
        start, channel, kind, body = map(re.escape, (self.start, self.channel, self.type, self.body))
        recipient = rf"\s?to=[\w.-]{{1,{FIELD_CHARACTERS}}}\s?"
        begun = f"{start}{field}(?:{channel}{field})?|{recipient}{channel}{field}|{channel}{field}"
        return f"(?P<header>(?:{begun})(?:{kind}{field})?){body}"

    @property
    def reasoning_start(self) -> str:
        return f"{self.channel}{self.reasoning}{self.body}"

    def template(self) -> dict[str, Any]:
        """Return the response template whose regions are channels."""
        channel = {
            "open_pattern": self.header_pattern,
            "close": self.end,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{header}", "arguments": "{content}"}},
        }
        return {"start_anchor": self.start, "fields": {"channel": channel, "content": {}}}

    def route(self, header: str) -> tuple[Kind, Mapping[str, str]]:
        """Return the kind of region that a header begins, and the name of the tool that it calls."""
        recipient = re.search(r"\bto=(?:[\w-]+\.)?(?P<name>[\w.-]+)", header)
        if self.calls and recipient is not None:
            return "call", {"name": recipient["name"]}
        named = re.search(rf"{re.escape(self.channel)}\s*(\w+)", header)
        return ("reasoning" if named and named[1] == self.reasoning else "content"), {}
