"""The form of a model's tool calls, and the grammar of one call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engine_server.server.conversation.calls.grammars.dialect import dialect_arguments
from engine_server.server.conversation.calls.grammars.keywords import Constants, keyword_arguments
from engine_server.server.conversation.calls.grammars.literals import HOLES, Literals, fixed_text, text_before
from engine_server.server.conversation.calls.grammars.tags import CallRules
from engine_server.server.generation.tool_use import ANY_OBJECT
from engine_server.structured.schema import json_rule
from engine_server.structured.schemas.arguments import Arguments

WORD = re.compile(r"[\w.-]+", re.ASCII)
JSON_PIECE = re.compile(r"\w+|[^\w\s]")
# The name of an argument that no schema declares.
ANY_KEY = r"/[\w.-]{1,128}/"


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call as the model writes it, with NAME and ARGUMENTS in the places of both. NAME may stand twice."""

    text: str
    before: str = ""
    separator: str = ""
    after: str = ""
    # The form of one argument, with KEY and VALUE, where arguments are not JSON.
    tag: str | None = None
    # The form of one that is no string, with TYPE for its type where that is written; None: the same.
    other_tag: str | None = None
    # Delimits strings in arguments that are JSON with bare keys.
    quote: str | None = None
    # Arguments are Python's keywords, with its constants or JSON's.
    keywords: Constants | None = None
    at_most_one: bool = False
    # An answer with a call begins with it.
    at_start: bool = False

    @property
    def beginning(self) -> str:
        """The text before the tool's name."""
        return self.text.partition("NAME")[0]

    @property
    def middle(self) -> str:
        """The text between the tool's name and its arguments."""
        return self.text.partition("NAME")[2].partition("ARGUMENTS")[0]

    @property
    def end(self) -> str:
        """The text after the arguments."""
        return self.text.partition("ARGUMENTS")[2]


def named_pattern(form: CallForm, mark: str, names: Iterable[str]) -> str:
    """Return the pattern of what follows a call's first mark, as far as readers need it to know the tool.

    mark: with which the call begins. White space may differ from that of the form; other words of the form, and what
    JSON says of a type, may precede the name.
    """
    named = rf"(?:{'|'.join(map(re.escape, names))})\s*"
    between = (form.before + form.beginning).removeprefix(mark)
    if not between:
        return rf"\s*{named}{after_name(form)}"
    words = WORD.findall(f"{between} {form.middle} type function")
    spelled = (HOLES[word].strip("/") if word in HOLES else re.escape(word) for word in words)
    fill = rf"(?:(?:{'|'.join(spelled)})?[^\w.-])*(?<={re.escape(between[-1])})"
    return fill + named + after_name(form)


def after_name(form: CallForm) -> str:
    """Return the pattern of what follows the name of a tool in every spelling of a call."""
    if (
        form.middle.startswith('"') and form.tag is None
    ):  # up to the arguments, which readers of JSON wait for
        return r"\s*".join(map(re.escape, JSON_PIECE.findall(form.middle))) + r"\s*\S"
    return re.escape(form.middle[0]) if form.middle[:1] in (">", "[", '"') else r"[^\w.-]"


def call_rules(name: str, form: CallForm, tool: str, schema: Any | None, literals: Literals) -> list[str]:
    """Return the rules of one tool's call, of which the first has the name `name`.

    They begin with the tool's name, but for calls at the answer's start, which have their beginning too. schema: of the
    arguments, as `relax` makes it; None: they are any.
    """
    middle = form.middle.replace("NAME", tool)
    begin, end = fixed_text(middle, literals, before=tool), fixed_text(form.end, literals)
    if form.at_start:
        begin = literals.write_json(form.beginning + tool + middle)
    if form.tag is not None and schema is not None:
        tags = form.tag, form.other_tag or form.tag
        return CallRules(name, begin, end, tags, Arguments(schema), literals).rules()
    if form.tag is not None:
        arguments, rules = any_tags(name, form.tag, form.other_tag, literals)
    elif form.quote is not None:
        arguments, rules = dialect_arguments(name, form.quote, schema, literals)
    elif form.keywords is not None:
        arguments, rules = keyword_arguments(name, form.keywords, schema, literals)
    else:
        arguments, rules = json_rule(ANY_OBJECT if schema is None else schema), []
    return [f"{name}: {begin} {arguments} {end}", *rules]


def any_tags(name: str, tag: str, other_tag: str | None, literals: Literals) -> tuple[str, list[str]]:
    """Return any arguments that are tags, and their rules. tag, other_tag: with KEY and VALUE."""
    closing = tag.partition("VALUE")[2]
    openings = []
    for one in (tag, other_tag):
        if one is not None:
            before, _, rest = one.partition("KEY")
            middle = rest.partition("VALUE")[0]
            openings.append(f"{literals.write(before)} {ANY_KEY} {fixed_text(middle, literals)}")
    opened = openings[0] if len(openings) == 1 else f"({' | '.join(openings)})"
    rule = f"{name}_any: {opened} {name}_text"
    return f"{name}_any*", [rule, *text_before(f"{name}_text", "TEXT", closing, literals)]
