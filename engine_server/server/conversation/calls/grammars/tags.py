"""Grammars of tool calls whose arguments are tags, a tag for each, in llguidance's variant of Lark's syntax.

What they allow is what the reader (`xml_arguments`) reads as the arguments' types: strings stand as they are, other
values as JSON, so that no string may spell a value of another type that its argument allows.
"""

from __future__ import annotations

import json

import llguidance

from engine_server.server.conversation.calls.grammars.literals import (
    Literals,
    fixed_text,
    quoted,
    text_before,
)
from engine_server.structured.schema import unmended_json_rule
from engine_server.structured.schemas.alternatives import ObjectForm, StringRules
from engine_server.structured.schemas.arguments import Argument, Arguments
from engine_server.structured.schemas.formats import FORMATS
from engine_server.structured.schemas.patterns import read_pattern

SPACE = r"[\s\x1c-\x1f]*"
# Texts that the reader takes for a value of a type.
SPELLED = {
    "null": rf"{SPACE}(null|None){SPACE}",
    "boolean": rf"{SPACE}(true|false|True|False){SPACE}",
    "integer": rf"{SPACE}-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?{SPACE}",
    "number": rf"{SPACE}-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?{SPACE}",
    "array": rf"{SPACE}\[(?s:.*)",
    "object": rf"{SPACE}\{{(?s:.*)",
}


class CallRules:
    """The rules of one tool's call: its arguments in the order of the schema."""

    def __init__(
        self,
        name: str,
        begin: str,
        end: str,
        tags: tuple[str, str],
        arguments: Arguments,
        literals: Literals,
    ) -> None:
        """name: of the call's rule. begin, end: what is before and after the arguments, as parts of a rule.

        tags: an argument that is a string, and one that is none, with KEY and VALUE.
        """
        self._name, self._begin, self._end = name, begin, end
        self._tag, self._other_tag = tags
        self._arguments = arguments
        self._literals = literals
        self._rules: list[str] = []

    def rules(self) -> list[str]:
        """Return the rules, of which the first has the name of the call."""
        forms = []
        for form in self._arguments.forms or [ObjectForm()]:
            parts = self._form(form)
            if parts is not None:
                forms.append(" ".join([self._begin, *parts, self._end]))
        return [f"{self._name}: {' | '.join(forms) or f'{self._begin} {self._end}'}", *self._rules]

    def _form(self, form: ObjectForm) -> list[str] | None:
        """Return the parts of one form of the arguments; None if a required one has no value."""
        parts = []
        for name in form.properties:
            argument = self._arguments.argument(form, name)
            if rule := self._argument(name, argument):
                parts.append(rule if name in form.required else f"{rule}?")
            elif name in form.required:
                return None
        return parts

    def _argument(self, name: str, argument: Argument) -> str:
        """Add the rules of an argument, and return the name of the first; "" if it has no value."""
        rule = f"{self._name}_{len(self._rules)}"
        opening, _, closing = self._tag.replace("KEY", name, 1).partition("VALUE")
        # Without the white space that ends the value, which the reader takes for a part of the closing tag.
        mark = closing.lstrip()
        write = self._literals.write
        texts = self._texts(rule, argument, closing[: len(closing) - len(mark)], mark)
        listed, others = listed_texts(argument, mark.rstrip()), other_values(argument)
        if self._other_tag == self._tag:
            listed, others = [*listed, *others], []
        ways = []
        if listed:
            texts.append(f"({' | '.join(listed)}) {write(closing)}")
        if texts:
            ways.append(f"{write(opening)} ({' | '.join(texts)})")
        if others:
            before, _, rest = self._other_tag.partition("KEY")
            opening = f"{write(before + name)} {fixed_text(rest.partition('VALUE')[0], self._literals)}"
            ways.append(f"{opening} ({' | '.join(others)}) {write(closing)}")
        if not ways:
            return ""
        self._rules.insert(0, f"{rule}: {' | '.join(ways)}")
        return rule

    def _texts(self, rule: str, argument: Argument, space: str, mark: str) -> list[str]:
        """Add the rules of strings that aren't listed, with the closing tag; return the names."""
        if "string" not in argument.allowed or argument.allowed["string"] is not None:
            return []
        spelled = [f"~/{SPELLED[kind]}/" for kind in argument.allowed if kind != "string"]
        names = []
        for number, bounds in enumerate(argument.strings):
            name = f"{rule}_text_{number}"
            terminals, closing = string_terminals(bounds, space, mark)
            self._rules.append(f"{name.upper()}: {' & '.join([*terminals, *spelled])}")
            self._rules += text_before(name, name.upper(), closing, self._literals)
            names.append(name)
        return names


def string_terminals(bounds: StringRules, space: str, mark: str) -> tuple[list[str], str]:
    """Return regular expressions that a string matches, all of them, and the text that follows it.

    space, mark: the closing tag. The first mark ends the value, whatever the bounds, so no mark may be in what they
    demand. Complements of regular expressions would say so too, and take thousands of states for a bounded string.
    """
    least = max((rule.min_length for rule in bounds), default=0)
    most = min((rule.max_length for rule in bounds if rule.max_length is not None), default=None)
    patterns = [f"/{pattern_regex(rule.pattern)}/" for rule in bounds if rule.pattern is not None]
    patterns += [f"/{lark_regex(FORMATS[rule.format])}/" for rule in bounds if rule.format is not None]
    if patterns:
        kept = "(?s:.)" if mark[0] in "".join(patterns) else f"[^{escaped(mark[0])}]"
        return [*patterns, f"/{kept}{{{least},{'' if most is None else most}}}/"], space + mark
    demanded = f"[^{escaped(mark[0] + space)}]{{{least}}}" if least else ""
    if most is None:
        return [f"/{demanded}(?s:.*)/"], mark
    return [f"/{demanded}(?s:.{{0,{most - least}}})({escaped(space)})?/"], mark


def escaped(text: str) -> str:
    """Return a regular expression, or a part of a character class, for a text."""
    return "".join(f"\\u{{{ord(character):x}}}" for character in text)


def pattern_regex(pattern: str) -> str:
    """Return a regular expression for a whole string that has a match of a pattern."""
    ways = [
        ("" if starts else "(?s:.*)") + f"({lark_regex(body)})" + ("" if ends else "(?s:.*)")
        for starts, body, ends in read_pattern(pattern).alternatives
    ]
    return "|".join(ways)


def lark_regex(text: str) -> str:
    """Return a regular expression in Lark's syntax."""
    return str(llguidance.regex_to_lark(text, "dw"))


def listed_texts(argument: Argument, mark: str) -> list[str]:
    """Return the listed strings, but those that have the mark which ends a value."""
    return [quoted(text) for text in argument.allowed.get("string") or () if mark not in text]


def other_values(argument: Argument) -> list[str]:
    """Return the values that are no strings, as JSON: the listed ones, and a rule for the others."""
    kinds = argument.allowed.types - {"string"}
    listed = [value for kind in sorted(kinds) for value in argument.allowed[kind] or ()]
    values = [quoted(json.dumps(value, ensure_ascii=False)) for value in listed]
    free = [kind for kind in sorted(kinds) if argument.allowed[kind] is None]
    return [*values, *([unmended_json_rule({**argument.others, "type": free})] if free else ())]
