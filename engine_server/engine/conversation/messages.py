"""The messages that a chat template takes, made from a conversation by what the template prints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from engine_server.engine.conversation.capabilities import Capabilities, Kind, ShownPictures
from engine_server.engine.conversation.pictures import (
    pictures_of,
    with_moved_pictures,
    with_omitted_pictures,
)
from engine_server.engine.conversation.turns import (
    Call,
    Content,
    ImagePart,
    Omitted,
    Part,
    Result,
    Text,
    Thinking,
    Turn,
    joined,
    runs,
)
from engine_server.engine.conversation.words import WriteCalls, result_in_words, with_described_tools

Message = dict[str, Any]
# Roles whose turns say how to answer.
INSTRUCTING = ("system", "developer")
# The kinds of the parts of an answer, in the order in which templates print them.
KINDS: dict[type, Kind] = {Thinking: "thinking", Text: "text", Omitted: "text", Call: "calls"}
ORDER: tuple[Kind, ...] = ("thinking", "text", "calls")
# Of a template that is not probed.
SHOWN_PICTURES = ShownPictures()
# What a tool has that says nothing of itself but its name.
WITHOUT_ANY = {"description": "", "parameters": {"type": "object", "properties": {}}}
SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class Lost(NamedTuple):
    """A part of a conversation that the template prints nowhere."""

    # Of its turn in the body.
    path: str
    type: str


class TemplateMessages(NamedTuple):
    """The messages of a conversation."""

    messages: list[Message]
    # What the template doesn't print.
    lost: list[Lost]
    # Those of the parts of messages that are pictures, in their order.
    pictures: list[ImagePart]


def template_messages(
    turns: Sequence[Turn],
    capabilities: Capabilities,
    write_calls: WriteCalls | None,
    described: Sequence[dict[str, Any]] = (),
    shown: ShownPictures = SHOWN_PICTURES,
) -> TemplateMessages:
    """Return the messages of a conversation.

    write_calls: writes calls as text where the template prints none; None: their form is not known. described: tools
    that the system's message describes in words. shown: the turns in which the template prints pictures.
    """
    if not capabilities.results:
        turns = [results_as_user(turn) if turn.role == "tool" else turn for turn in turns]
    elif shown.results == "after":
        turns = with_moved_pictures(turns)
    omitted = pictures_of(turns) if shown.results is None else []
    if omitted:
        turns = with_omitted_pictures(turns)
    turns = with_described_tools(with_joined_instructions(turns, capabilities), described)
    turns = alternating(with_placed_instructions(turns, capabilities), capabilities)
    if capabilities.calls and not capabilities.several_calls:
        turns = with_single_calls(turns)
    writer = MessageWriter(capabilities, write_calls)
    messages = [
        message for turn in turns for part in divided(turn, capabilities) for message in writer.write(part)
    ]
    lost = [Lost(picture.path, picture.type) for picture in omitted]
    return TemplateMessages(messages, lost + writer.lost, writer.pictures)


def template_tools(tools: Sequence[dict[str, Any]], capabilities: Capabilities) -> list[dict[str, Any]]:
    """Return tools with all that the template reads of them."""
    if capabilities.bare_tools:
        return list(tools)
    return [{**tool, "function": {**WITHOUT_ANY, **tool["function"]}} for tool in tools]


def results_as_user(turn: Turn) -> Turn:
    """Return results as a turn of the user."""
    parts: list[Part] = []
    for part in turn.parts:
        parts += result_in_words(part) if isinstance(part, Result) else [part]
    return replace(turn, role="user", parts=tuple(parts), name=None)


def with_joined_instructions(turns: Sequence[Turn], capabilities: Capabilities) -> list[Turn]:
    """Return a conversation with one turn of instructions at its beginning, or several where all are printed."""
    leading = list(takewhile(lambda turn: turn.role in INSTRUCTING, turns))
    first = [replace(turn, role="system") for turn in leading]
    if len(leading) > 1 and (leading != first or not capabilities.second_system):
        first = [replace(first[0], parts=(Text("\n\n".join(turn.text for turn in leading)),))]
    return [*first, *turns[len(leading) :]]


def with_placed_instructions(turns: Sequence[Turn], capabilities: Capabilities) -> list[Turn]:
    """Return a conversation with its instructions where the template prints them.

    Those that it doesn't print become a part of the user's turn in their place: at the beginning, later ones would
    change the prefix of every prompt after them, which the cache has.
    """
    found: list[Turn] = []
    # The last turn may be joined with the next one of the user.
    open_turn = False
    at_beginning = True
    for turn in turns:
        instructs = turn.role in INSTRUCTING
        at_beginning &= instructs
        printed = capabilities.system if at_beginning else capabilities.later_system
        placed = replace(turn, role="system" if printed else "user") if instructs else turn
        moved = instructs and not printed
        if found and found[-1].role == placed.role == "user" and (moved or open_turn):
            found[-1] = joined_turns(found[-1], placed)
        else:
            found.append(placed)
        open_turn = moved
    return found


def alternating(turns: Sequence[Turn], capabilities: Capabilities) -> list[Turn]:
    """Return a conversation whose turns alternate as far as the template demands."""
    alternate = {"user": not capabilities.user_turns, "assistant": not capabilities.assistant_turns}
    found: list[Turn] = []
    for turn in turns:
        if found and found[-1].role == turn.role and alternate.get(turn.role):
            found[-1] = joined_turns(found[-1], turn)
        else:
            found.append(turn)
    return found


def joined_turns(first: Turn, second: Turn) -> Turn:
    return replace(first, parts=first.parts + second.parts)


def with_single_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Return a conversation in which each call is in a turn of its own, with its result after it."""
    found: list[Turn] = []
    results: dict[str | None, Turn] = {}
    for number, turn in enumerate(turns):
        calls = [part for part in turn.parts if isinstance(part, Call)]
        if len(calls) < 2:
            found += [turn] if results.pop(result_id(turn), None) is None else []
            continue
        following = takewhile(lambda turn: turn.role == "tool", turns[number + 1 :])
        results = {result_id(one): one for one in following}
        first = turn.parts.index(calls[0])
        pieces = [turn.parts[: first + 1], *((part,) for part in turn.parts[first + 1 :])]
        for piece in pieces:
            found.append(replace(turn, parts=tuple(piece)))
            last = piece[-1]
            if isinstance(last, Call) and last.id in results:
                found.append(results[last.id])
    return found


def result_id(turn: Turn) -> str | None:
    """Return the id of the call whose result a turn is."""
    return next((part.id for part in turn.parts if isinstance(part, Result)), None)


def divided(turn: Turn, capabilities: Capabilities) -> list[Turn]:
    """Return an answer as the turns in which the template prints it whole and in its order."""
    if turn.role != "assistant" or not capabilities.calls:
        return [turn]
    runs = runs_in_order(turn.parts)
    if len(runs) > 1 and not (capabilities.assistant_turns and capabilities.calls_in_turns):
        runs = [[part for kind in ORDER for part in turn.parts if KINDS[type(part)] == kind]]
    return [replace(turn, parts=tuple(parts)) for run in runs for parts in division_of(run, capabilities)]


def runs_in_order(parts: Sequence[Part]) -> list[list[Part]]:
    """Return the longest runs of parts that one turn has in their order."""
    runs: list[list[Part]] = [[]]
    for part in parts:
        before = runs[-1][-1:]
        if before and ORDER.index(KINDS[type(part)]) < ORDER.index(KINDS[type(before[0])]):
            runs.append([])
        runs[-1].append(part)
    return runs


def division_of(parts: Sequence[Part], capabilities: Capabilities) -> list[list[Part]]:
    """Return the parts of each turn."""
    kinds = {KINDS[type(part)] for part in parts}
    if capabilities.answer is None or not kinds >= {"text", "calls"}:
        return [list(parts)]
    divided = [[part for part in parts if KINDS[type(part)] in turn] for turn in capabilities.answer]
    return [turn for turn in divided if turn]


class MessageWriter:
    """Writes the turns of one conversation, in their order.

    lost: the parts that are not printed. pictures: those in the messages so far, in their order.
    """

    def __init__(self, capabilities: Capabilities, write_calls: WriteCalls | None) -> None:
        self._capabilities = capabilities
        self._write_calls = write_calls
        # Of the calls so far, by their id: the id that the template has, and the tool's name.
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._num_calls = 0
        self.lost: list[Lost] = []
        self.pictures: list[ImagePart] = []

    def write(self, turn: Turn) -> list[Message]:
        results = [part for part in turn.parts if isinstance(part, Result)]
        if results:
            return [self._result(result) for result in results]
        message: Message = {"role": turn.role, "content": self._content(turn.content)}
        if turn.name is not None:
            message["name"] = turn.name
        thoughts = [part.text for part in turn.parts if isinstance(part, Thinking)]
        if thoughts:
            message[self._capabilities.reasoning] = "\n\n".join(thoughts)
        calls = [part for part in turn.parts if isinstance(part, Call)]
        if calls and self._capabilities.calls:
            message["tool_calls"] = self._calls(calls)
            if turn.text and self._capabilities.answer is None:
                self.lost.append(Lost(turn.path, "text"))
        elif calls and self._write_calls is not None:
            texts = [Text(turn.text)] if turn.text else []
            written = self._write_calls([(call.name, call.arguments) for call in calls])
            message["content"] = self._content((*texts, Text(written)))
        elif calls:
            self.lost.append(Lost(turn.path, "tool_calls"))
        return [message]

    def _content(self, content: Content) -> Any:
        pictures = [part for part in content if isinstance(part, ImagePart)]
        self.pictures += pictures
        if not pictures and self._capabilities.content == "text":
            return joined(content)
        parts = runs(content) or [Text("")]
        return [
            {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
            for part in parts
        ]

    def _result(self, result: Result) -> Message:
        message: Message = {"role": "tool", "content": self._content(result.printed)}
        if result.id is not None:
            message["tool_call_id"] = self._ids.get(result.id) or self._id(result.id, "")
        name = self._names.get(result.id or "") if result.name is None else result.name
        if name is not None:
            message["name"] = name
        return message

    def _calls(self, calls: Sequence[Call]) -> list[Message]:
        if self._capabilities.ids == "numbered_in_answer":
            self._num_calls = 0
        written = []
        for call in calls:
            function = {"name": call.name, "arguments": self._arguments(call.arguments)}
            message: Message = {"type": "function", "function": function}
            if call.id is not None:
                message["id"] = self._ids[call.id] = self._id(call.id, call.name)
                self._names[call.id] = call.name
            written.append(message)
            self._num_calls += 1
        return written

    def _id(self, id: str, name: str) -> str:
        """Return an id in the form that the template demands. name: of the tool that is called; "" for a result."""
        match self._capabilities.ids:
            case "short" if not SHORT_ID.fullmatch(id):
                return hashlib.blake2b(id.encode()).hexdigest()[:9]
            case "numbered" | "numbered_in_answer" if name:
                return f"functions.{name}:{self._num_calls}"
            case _:
                return id

    def _arguments(self, arguments: dict[str, Any] | str) -> dict[str, Any] | str:
        match self._capabilities.arguments:
            case "text" if isinstance(arguments, dict):
                return json.dumps(arguments, ensure_ascii=False)
            case "object" if isinstance(arguments, str):
                return {"arguments": arguments}
            case _:
                return arguments
