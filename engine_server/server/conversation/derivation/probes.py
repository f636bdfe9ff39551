"""Renderings of short answers, whose parts are words that no template has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from engine_server.engine.conversation.chat_template import ChatTemplate, TemplateRefusedError
from engine_server.server.conversation.derivation.pieces import common_start, marks_in
from engine_server.server.conversation.openings import SWITCHES

USER, CONTENT, REASONING = "Hovdap", "Cetlum", "Rujnig"
NAMES = ("quaxel", "bivrot")
KEYS = ("kuldo", "yastri")
VALUES = ("Mirqen", "Wobtal")
# Some templates demand nine letters and digits.
IDS = ("Ubirtqka1", "Xoqplmze1", "Vedokwup1")
LONG_ID = "call_f04c1cdb92aa7c5e1"

Arguments = Mapping[str, Any]


class UnknownFormError(Exception):
    """A template prints answers in a way for which there is no form here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as its parts. A part that is empty is left out."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Arguments], ...] = ()


@dataclass(frozen=True, slots=True)
class Rendering:
    """An answer as a template prints it: the header, which the prompt has too, and the text after it."""

    header: str
    text: str


@dataclass(frozen=True)
class Probes:
    """A template with the tools and the fields with which answers are rendered."""

    template: ChatTemplate
    tools: Sequence[Mapping[str, Any]] = ()
    # Earlier calls have their arguments as JSON text.
    text_arguments: bool = False
    # The form of the ids of calls: nine letters and digits, longer ones, or `functions.NAME:INDEX`.
    ids: Literal["short", "long", "functions"] = "short"
    # The field of the reasoning; None for answers without it.
    reasoning_field: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def with_reasoning(self, name: str, variables: Mapping[str, Any]) -> Probes:
        return replace(self, reasoning_field=name, variables=variables)

    def message(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as an earlier turn."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.reasoning and self.reasoning_field is not None:
            message[self.reasoning_field] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": self.call_id(index, name),
                    "type": "function",
                    "function": {"name": name, "arguments": self._given(arguments)},
                }
                for index, (name, arguments) in enumerate(answer.calls)
            ]
        return message

    def call_id(self, index: int, name: str) -> str:
        match self.ids:
            case "short":
                return IDS[index]
            case "long":
                return f"{LONG_ID}{index}"
            case "functions":
                return f"functions.{name}:{index}"

    def render(self, answer: Answer) -> Rendering | None:
        """Return an answer to the user as the template prints it; None if it refuses it."""
        try:
            rendered = self._after_user([self.message(answer)])
        except TemplateRefusedError:
            return None
        header = next((one for one in self.openings if rendered.startswith(one)), None)
        header = common_header(rendered, self.opening) if header is None else header
        return Rendering(header, rendered[len(header) :])

    @cached_property
    def opening(self) -> str:
        """What the prompt has after the text of the user, with the beginning of the answer; "" if it is refused."""
        return self._opened(self.variables)

    @cached_property
    def openings(self) -> list[str]:
        """The openings with the reasoning as usual, on and off, the longest first."""
        switches = [name for name in SWITCHES if name in self.template.variables]
        switched = [self._opened({name: value}) for name in switches for value in (True, False)]
        return sorted({self.opening, *switched} - {""}, key=len, reverse=True)

    def _opened(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._after_user([], opens=True, variables=variables)
        except TemplateRefusedError:
            return ""

    def _after_user(
        self,
        messages: list[dict[str, Any]],
        opens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        user = {"role": "user", "content": USER}
        given = self.variables if variables is None else variables
        rendered = self.template.probe([user, *messages], self.tools, opens, given)
        _, found, after = rendered.rpartition(USER)
        if not found:
            raise TemplateRefusedError("the text of the user is not printed")
        return after

    def _given(self, arguments: Arguments) -> Any:
        return json.dumps(arguments, ensure_ascii=False) if self.text_arguments else arguments


def common_header(answer: str, opening: str) -> str:
    """Return what an opening shares with an answer that has another one."""
    shared = common_start(answer, opening)
    ends = [shared.rindex(mark) + len(mark) for mark in ["\n", *marks_in(shared)] if mark in shared]
    return shared[: max(ends, default=0)]


CALL = ((NAMES[0], {KEYS[0]: VALUES[0]}),)
TWO_CALLS = (*CALL, (NAMES[1], {KEYS[1]: VALUES[1]}))


def tool(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a tool. properties: the schemas of its arguments."""
    parameters = {"type": "object", "properties": dict(properties), "required": []}
    return {
        "type": "function",
        "function": {"name": name, "description": "A tool.", "parameters": parameters},
    }


TOOLS = [
    tool(name, {key: {"type": "string", "description": "An argument."} for key in KEYS}) for name in NAMES
]
