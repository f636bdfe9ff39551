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
    # None for headers without recipients and types beside the channel.
    type: str | None = None
    body: str
    end: list[str]
    role: str = "assistant"
    # Those of the reasoning and of text for the user; text of all others is content too.
    reasoning: str
    final: str
    # Every other channel is a tool that is called.
    tools: bool = False
    # The pattern of an argument of a call, where arguments are not JSON.
    tag_pattern: str | None = None
    # The text after the last of such arguments.
    tags_end: str | None = None
    # A recipient is a tool that is called; without calls its part is content.
    calls: bool = True

    @property
    def header_pattern(self) -> str:
        """The pattern of a header, with the group `header`. An answer begins after the role."""
        marks = [self.start, self.channel, self.body, *self.end, *([self.type] if self.type else [])]
        field = f"(?:(?!{'|'.join(map(re.escape, marks))}).){{0,{FIELD_CHARACTERS}}}?"
        start, channel, body = map(re.escape, (self.start, self.channel, self.body))
        begun = f"{start}{field}(?:{channel}{field})?|{channel}{field}"
        if self.type is None:
            return f"(?P<header>{begun}){body}"
        recipient = rf"\s?to=[\w.-]{{1,{FIELD_CHARACTERS}}}\s?"
        return f"(?P<header>(?:{recipient}{channel}{field}|{begun})(?:{re.escape(self.type)}{field})?){body}"

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
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        }
        if self.tag_pattern is not None:
            channel |= {
                "content": "xml-inline",
                "content_args": {"tag_pattern": self.tag_pattern, "end": self.tags_end},
            }
        return {"start_anchor": self.start, "fields": {"channel": channel, "content": {}}}

    def route(self, header: str) -> tuple[Kind, Mapping[str, str]]:
        """Return the kind of region that a header begins, and the name of the tool that it calls."""
        found = re.search(rf"{re.escape(self.channel)}\s*([\w.-]+)", header)
        named = found[1] if found is not None else self.final
        if self.tools:
            tool = named if named not in (self.reasoning, self.final) else None
        else:
            recipient = re.search(r"\bto=(?:[\w-]+\.)?([\w.-]+)", header)
            tool = recipient[1] if recipient is not None else None
        if self.calls and tool is not None:
            return "call", {"name": tool}
        return ("reasoning" if named == self.reasoning else "content"), {}
