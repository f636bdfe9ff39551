"""Joining of an answer's parts."""

from collections.abc import Iterable

from engine_server.server.generation.events import Part, Reasoning, Text, ToolCall


def join_parts(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with adjacent fragments of one text, one reasoning or one tool call joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        match last, part:
            case Text(), Text():
                joined[-1] = Text(last.text + part.text)
            case Reasoning(), Reasoning():
                joined[-1] = Reasoning(last.text + part.text)
            case ToolCall(), ToolCall() if last.index == part.index:
                joined[-1] = ToolCall(last.index, last.id, last.name, last.arguments + part.arguments)
            case _:
                joined.append(part)
    return joined
