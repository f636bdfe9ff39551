"""Short conversations with sentinels, whose renderings show what a chat template does with a history."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from engine_server.engine.conversation.capabilities import (
    DIVISIONS,
    REASONING_FIELDS,
    Capabilities,
    Division,
    Field,
    IdForm,
    Kind,
    ShownPictures,
)
from engine_server.engine.conversation.chat_template import ChatTemplate, TemplateRefusedError

Message = dict[str, Any]
NAME = "probename"
# An id of each form.
IDS: dict[IdForm, str] = {
    "any": "call_Probe0123456789abcdef",
    "short": "Probe1234",
    "numbered": f"functions.{NAME}:0",
    "numbered_in_answer": f"functions.{NAME}:0",
}
# A list of parts as Python or JSON writes it, which a template prints that takes texts alone.
REPR = re.compile(r"""['"]type['"]: ?['"]image['"]""")
SENTINEL = re.compile(r"probe\d+z")
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string"}}, "required": ["probe"]},
    },
}


def capabilities_of(template: ChatTemplate) -> Capabilities:
    """Return what a template does with a history. Each rendering stands alone: one that is refused is a fact.

    One that takes no tools prints no calls and no results, whatever it does with a turn that has some.
    """
    probe = Probe(template)
    if not probe.prints([user(1)]) and probe.prints([in_parts(user(1))]):
        probe.content = "parts"
    system = [said("system", 1)] if probe.prints([said("system", 1), user(2)]) else []
    probe.arguments = probe.form_of_arguments()
    probe.ids = probe.form_of_ids()
    probe.reasoning = next(filter(probe.reads, REASONING_FIELDS), REASONING_FIELDS[0])
    loop = list(probe.sentinels(probe.loop(probe.answer("calls"))))
    return Capabilities(
        content=probe.content,
        bare_tools=probe.takes_bare_tools(),
        system=bool(system),
        second_system=bool(system) and probe.has([*system, said("system", 2), user(3)]),
        later_system=bool(system)
        and probe.has([*system, user(2), probe.answer("text"), said("system", 4), user(5)])
        and probe.has([*system, user(2), probe.answer("text"), user(5), said("system", 4)]),
        user_turns=probe.prints([*system, user(2), user(3)]),
        assistant_turns=probe.prints([user(1), said("assistant", 2), said("assistant", 3), user(4)]),
        reasoning=probe.reasoning,
        around_reasoning=probe.around_reasoning(),
        calls=template.takes_tools and CALLED in loop,
        results=template.takes_tools and RESULT in loop,
        arguments=probe.arguments,
        ids=probe.ids,
        answer=next(filter(probe.takes, DIVISIONS), None),
        several_calls=probe.takes_calls_in_turns(together=True),
        calls_in_turns=probe.takes_calls_in_turns(),
    )


def shown_pictures(template: ChatTemplate, capabilities: Capabilities) -> ShownPictures:
    """Return the turns in which a template prints pictures."""
    probe = Probe(template)
    probe.content, probe.arguments, probe.ids = (
        capabilities.content,
        capabilities.arguments,
        capabilities.ids,
    )
    loop = probe.loop(probe.answer("calls"))
    users = probe.shows_picture([], user(2))
    results: Literal["in", "after"] | None = None
    if capabilities.results and probe.shows_picture(loop[:-1], loop[-1]):
        results = "in"
    elif users and (not capabilities.results or probe.shows_picture(loop, user(2))):
        results = "after"
    return ShownPictures(users, results)


def said(role: str, number: int) -> Message:
    return {"role": role, "content": f"probe{number}z"}


def user(number: int) -> Message:
    return said("user", number)


def in_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


# Sentinels of the parts of an answer, and of a result.
THOUGHT, TEXT, CALLED, RESULT = "probe20z", "probe21z", "probe22z", "probe23z"


class Probe:
    """Renders short conversations in the form that a template takes, as far as that is known."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._tools: list[dict[str, Any]] | None = [TOOL] if template.takes_tools else None
        self.content: Literal["text", "parts"] = "text"
        self.arguments: Literal["any", "object", "text"] = "any"
        self.ids: IdForm = "any"
        self.reasoning: Field = REASONING_FIELDS[0]

    def render(self, messages: list[Message]) -> str | None:
        """Return a conversation as text; None if the template refuses it."""
        if self.content == "parts":
            messages = [
                in_parts(message)
                if isinstance(message.get("content"), str) and message["content"]
                else message
                for message in messages
            ]
        try:
            return self._template.probe(messages, self._tools, opens=messages[-1]["role"] != "assistant")
        except TemplateRefusedError:
            return None

    def sentinels(self, messages: list[Message]) -> Iterator[str]:
        """Return the sentinels in a conversation's text, in their order."""
        return iter(SENTINEL.findall(self.render(messages) or ""))

    def prints(self, messages: list[Message]) -> bool:
        """Return True if a conversation's text has all of its sentinels, in their order."""
        printed = self.sentinels(messages)
        return all(given in printed for given in SENTINEL.findall(json.dumps(messages)))

    def has(self, messages: list[Message]) -> bool:
        """Return True if a conversation's text has all of its sentinels, in any order."""
        return set(SENTINEL.findall(json.dumps(messages))) <= set(self.sentinels(messages))

    def shows_picture(self, history: list[Message], message: Message) -> bool:
        """Return True if a message's text is printed as it is beside a picture, and the picture as something else."""
        text = {"type": "text", "text": message["content"]}
        without = self.render([*history, {**message, "content": [text]}])
        shown = self.render([*history, {**message, "content": [{"type": "image"}, text]}])
        if without is None or shown is None or REPR.search(shown):
            return False
        return message["content"] in shown and shown != without

    def answer(self, *kinds: Kind, call: str = CALLED, id: str | None = None) -> Message:
        """Return a turn of the assistant with parts of these kinds."""
        turn: Message = {"role": "assistant"}
        if "thinking" in kinds:
            turn[self.reasoning] = THOUGHT
        turn["content"] = TEXT if "text" in kinds else ""
        if "calls" in kinds:
            arguments: Any = {"probe": call}
            if self.arguments == "text":
                arguments = json.dumps(arguments)
            function = {"name": NAME, "arguments": arguments}
            turn["tool_calls"] = [{"id": id or IDS[self.ids], "type": "function", "function": function}]
        return turn

    def result(self, text: str = RESULT, id: str | None = None) -> Message:
        return {"role": "tool", "tool_call_id": id or IDS[self.ids], "name": NAME, "content": text}

    def loop(self, *answer: Message) -> list[Message]:
        """Return a conversation with an answer that ends with a call, and the call's result."""
        return [user(1), *answer, self.result()]

    def takes_bare_tools(self) -> bool:
        """Return False if the template refuses tools that lack a description or parameters, and no others."""
        whole, self._tools = self._tools, [{"type": "function", "function": {"name": NAME}}]
        bare = self.render([user(1)])
        self._tools = whole
        return bare is not None or self.render([user(1)]) is None

    def form_of_arguments(self) -> Literal["any", "object", "text"]:
        """Return the form in which arguments are printed as JSON. Most templates do so with objects."""
        call = [user(1), self.answer("calls")]
        as_object = self._prints_arguments(call)
        call[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"probe": CALLED})
        as_text = self._prints_arguments(call)
        if as_object:
            return "any" if as_text else "object"
        return "text" if as_text else "any"

    def _prints_arguments(self, call: list[Message]) -> bool:
        text = self.render(call)
        return text is not None and f"{{'probe': '{CALLED}'" not in text

    def form_of_ids(self) -> IdForm:
        """Return the form that ids must have: the first with which a call is printed, with its name."""
        forms: dict[IdForm, str] = {}
        for self.ids in IDS:
            text = self.render([user(1), self.answer("calls"), {**self.result(), "name": None}])
            forms[self.ids] = "" if text is None else text.partition("probe1z")[2]
        if IDS["numbered"] in forms["any"]:
            return "numbered_in_answer"
        return next((form for form, text in forms.items() if NAME in text), "any")

    def reads(self, field: Field) -> bool:
        """Return True if the template prints the reasoning of this field, beside calls or before text."""
        self.reasoning = field
        beside_calls = self.loop(self.answer("thinking", "calls"))
        return THOUGHT in self.sentinels(beside_calls) or THOUGHT in self.sentinels(
            [user(1), self.answer("thinking", "text")]
        )

    def around_reasoning(self) -> tuple[str, str] | None:
        """Return the text before and after the thought of the newest answer."""
        opened = self.render([user(1)])
        text = self.render([user(1), self.answer("thinking", "text")])
        if opened is None or text is None or THOUGHT not in text or TEXT not in text:
            return None
        before, _, rest = text.partition(THOUGHT)
        begun = before.removeprefix(opened) if before.startswith(opened) else ""
        return begun, rest.partition(TEXT)[0]

    def takes(self, division: Division) -> bool:
        """Return True if the template prints an answer with calls in these turns, with its thought if it reads any."""
        with_text = self.loop(*(self.answer(*kinds) for kinds in self._without_thinking(division)))
        if not self.prints(with_text) or not self.prints([*with_text, said("assistant", 8), user(9)]):
            return False
        if THOUGHT not in self.sentinels(self.loop(self.answer("thinking", "calls"))):
            return True
        printed = set(self.sentinels(self.loop(*(self.answer(*kinds) for kinds in division))))
        return {THOUGHT, TEXT, CALLED, RESULT} <= printed

    def _without_thinking(self, division: Division) -> Division:
        return tuple(tuple(kind for kind in kinds if kind != "thinking") for kinds in division)

    def takes_calls_in_turns(self, together: bool = False) -> bool:
        """Return True if the template prints two calls before their results. together: of one turn."""
        first, second = (f"{IDS[self.ids][:-1]}{digit}" for digit in "56")
        called = self.answer("calls", call="probe2z", id=first)
        also_called = self.answer("calls", call="probe3z", id=second)
        calls = [called, {**also_called, "content": TEXT}]
        if together:
            calls = [{**called, "tool_calls": called["tool_calls"] + also_called["tool_calls"]}]
        return self.prints(
            [user(1), *calls, self.result("probe4z", id=first), self.result("probe5z", id=second)]
        )
