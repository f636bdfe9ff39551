"""What a chat template prints of a history."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["thinking", "text", "calls"]
# The turns into which an answer is divided, each with the kinds of its parts.
Division = tuple[tuple[Kind, ...], ...]
Field = Literal["reasoning_content", "thinking", "reasoning"]
# The names under which templates read the reasoning of an earlier answer.
REASONING_FIELDS: tuple[Field, ...] = ("reasoning_content", "thinking", "reasoning")
# Ids of calls are any, have nine letters and digits, or are `functions.NAME:NUMBER`, with the call's number in the
# conversation or in its answer. A template that writes the last by itself prints the result's as it is given.
IdForm = Literal["any", "short", "numbered", "numbered_in_answer"]
# Ways to divide an answer with calls, of which the first that a template prints whole is taken.
DIVISIONS: tuple[Division, ...] = (
    (("thinking", "text", "calls"),),
    (("thinking", "text"), ("calls",)),
    (("text",), ("thinking", "calls")),
)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template prints of a history, and the form in which it takes it. The defaults: all of it."""

    # The content of a message is text, or a list of its parts.
    content: Literal["text", "parts"] = "text"
    # A tool may have no description or no parameters.
    bare_tools: bool = True
    system: bool = True
    # A second message of the system at the beginning, and one later.
    second_system: bool = True
    later_system: bool = True
    # Two turns of the user, or of the assistant, one after the other.
    user_turns: bool = True
    assistant_turns: bool = True
    # The field of an earlier answer's reasoning.
    reasoning: Field = "reasoning_content"
    # What is printed before the reasoning of the newest answer, and between it and the text; None: it is not printed.
    around_reasoning: tuple[str, str] | None = None
    calls: bool = True
    results: bool = True
    # The arguments of earlier calls are an object or JSON text, an object alone, or text alone.
    arguments: Literal["any", "object", "text"] = "any"
    ids: IdForm = "any"
    # The turns of an answer with calls; None: text beside calls is not printed.
    answer: Division | None = DIVISIONS[0]
    # An answer may have several calls.
    several_calls: bool = True
    # The calls of one answer may be in several turns before their results.
    calls_in_turns: bool = True


class ShownPictures(msgspec.Struct, frozen=True):
    """The turns in which a chat template prints pictures as parts of lists. The defaults: all that may have some."""

    users: bool = True
    # In results of tools, or in a turn of the user after them; None: in neither.
    results: Literal["in", "after"] | None = "in"


# Of a template that is not probed.
ALL_CAPABILITIES = Capabilities()
