"""Grammars of tool calls whose arguments are tags, a tag for each, in llguidance's variant of Lark's syntax.

What they allow is what the reader (`xml_arguments`) reads as the arguments' types: strings stand as they are, other
values as JSON, so that no string may spell a value of another type that its argument allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance

from engine_server.structured.schema import unmended_json_rule
from engine_server.structured.schemas.alternatives import ObjectForm, StringRules
from engine_server.structured.schemas.arguments import Argument, Arguments
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


def tagged_calls(text: str, tag: str, separator: str | None, schemas: Mapping[str, Any]) -> str:
    """Return the grammar of at least one call.

    text: a call, with NAME and ARGUMENTS. tag: an argument, with KEY and VALUE. separator: text between two calls;
    None for one call alone. schemas: of the arguments, by the tools' names, as `relax` makes them.
    """
    names = [f"call_{number}" for number in range(len(schemas))]
    more = "" if separator is None else f" ({quoted(separator)} call)*"
    rules = [f"start: call{more}", f"call: {' | '.join(names)}"]
    for rule, (name, schema) in zip(names, schemas.items(), strict=True):
        begin, _, end = text.replace("NAME", name, 1).partition("ARGUMENTS")
        rules += CallRules(rule, begin, end, tag, Arguments(schema)).rules()
    return "\n".join(rules)


class CallRules:
    """The rules of one tool's call: its arguments in the order of the schema."""

    def __init__(self, name: str, begin: str, end: str, tag: str, arguments: Arguments) -> None:
        self._name, self._begin, self._end = name, begin, end
        self._tag = tag
        self._arguments = arguments
        self._rules: list[str] = []

    def rules(self) -> list[str]:
        """Return the rules, of which the first has the name of the call."""
        forms = []
        for form in self._arguments.forms or [ObjectForm()]:
            parts = self._form(form)
            if parts is not None:
                forms.append(" ".join([quoted(self._begin), *parts, quoted(self._end)]))
        return [f"{self._name}: {' | '.join(forms) or quoted(self._begin + self._end)}", *self._rules]

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
        ways = self._texts(rule, argument, closing[: len(closing) - len(mark)], mark)
        values = [*listed_texts(argument, mark.rstrip()), *other_values(argument)]
        if values:
            ways.append(f"({' | '.join(values)}) {quoted(closing)}")
        if not ways:
            return ""
        self._rules.insert(0, f"{rule}: {quoted(opening)} ({' | '.join(ways)})")
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
            # A lazy rule ends at the first occurrence of the closing tag.
            self._rules.append(f"{name}[lazy]: {name.upper()} {quoted(closing)}")
            self._rules.append(f"{name.upper()}: {' & '.join([*terminals, *spelled])}")
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
        ("" if starts else "(?s:.*)")
        + f"({llguidance.regex_to_lark(body, 'dw')})"
        + ("" if ends else "(?s:.*)")
        for starts, body, ends in read_pattern(pattern).alternatives
    ]
    return "|".join(ways)


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


def quoted(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
