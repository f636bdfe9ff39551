"""A derived form as plain data, of the shape that an entry of `formats.yaml` has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_server.server.conversation.calls.grammars.literals import FIND_HOLE, IDENTIFIER, INDEX
from engine_server.server.conversation.derivation.arguments import TagArguments
from engine_server.server.conversation.derivation.calls import CallTexts
from engine_server.server.conversation.derivation.pieces import marks_in
from engine_server.server.conversation.derivation.probes import UnknownFormError
from engine_server.server.conversation.response_template import END_FIELD

NAME = r"(?P<name>[\w.-]{1,256})"
# The patterns of what differs from call to call.
PATTERNS = {IDENTIFIER: r"[\w.:-]{1,64}", INDEX: "[0-9]{1,4}"}
CALLED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A call that is one JSON object: the keys of its name and arguments, and the texts around it."""

    # None: the key is the call's name, and the value its arguments.
    name_key: str | None
    arguments_key: str
    before: str
    after: str


def call_form(texts: CallTexts, tags: TagArguments | None) -> dict[str, Any]:
    """Return calls as `CallForm` has them."""
    form: dict[str, Any] = {"text": f"{texts.begin}NAME{texts.middle}ARGUMENTS{texts.end}"}
    form |= {key: getattr(texts, key) for key in ("before", "separator", "after") if getattr(texts, key)}
    if tags is not None:
        form["tag"] = f"{tags.open}KEY{tags.middle}VALUE{tags.close}"
        if tags.other_middle != tags.middle:
            form["other_tag"] = f"{tags.open}KEY{tags.other_middle}VALUE{tags.close}"
    if texts.at_most_one:
        form["at_most_one"] = True
    return form


def json_object(texts: CallTexts) -> JsonObject | None:
    """Return a call as a JSON object; None where the name stands outside of one."""
    text = f"{texts.begin}NAME{texts.middle}{{}}{texts.end}".replace(INDEX, "0")
    place = texts.begin.find("{")
    if place < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text, place)
    except ValueError:
        return None
    before, after = text[:place], text[end:]
    if value == {"NAME": {}}:
        return JsonObject(None, "", before, after)
    keys = {"NAME": "", "{}": ""}
    for key, one in value.items():
        if one in ("NAME", {}):
            keys["NAME" if one == "NAME" else "{}"] = key
    if not all(keys.values()):
        raise UnknownFormError("the name or the arguments are within another object")
    return JsonObject(keys["NAME"], keys["{}"], before, after)


def call_fields(texts: CallTexts, tags: TagArguments | None, turn_ends: list[str]) -> dict[str, Any]:
    """Return the fields of a response template that read calls. Raises UnknownFormError."""
    called = json_object(texts) if tags is None else None
    if called is None:
        field = named_call(texts, tags, turn_ends)
    elif called.before.strip():
        field = {**beginning(texts, called.before), **ending(called.after, called.before, turn_ends)}
        field |= {"repeats": True, **members(called, each=False)}
    else:
        listed = bool(texts.before)
        return {"tool_calls": {**listed_calls(texts, turn_ends), **members(called, each=listed)}}
    fields = {"tool_calls": field}
    ends = [texts.after.strip()] if texts.before.strip() and texts.after.strip() else []
    ends += marks_in(texts.end)[-1:]
    return {**fields, END_FIELD: {"open": ends}} if ends else fields


def members(called: JsonObject, each: bool) -> dict[str, Any]:
    """Return the reading of calls that are JSON objects. each: they are in a list."""
    if called.name_key is None:
        function = {"name": "{key}", "arguments": "{value}"}
        return {
            "content": "json",
            "content_args": {"names_are_keys": True},
            "transform": {"type": "function", "function": function},
        }
    path = "" if each else "content."
    function = {"name": f"{{{path}{called.name_key}}}", "arguments": f"{{{path}{called.arguments_key}}}"}
    listed = {"transform_each": True} if each else {}
    return {"content": "json", **listed, "transform": {"type": "function", "function": function}}


def listed_calls(texts: CallTexts, turn_ends: list[str]) -> dict[str, Any]:
    """Return the delimiters of a list of calls, or of a call that is all of an answer."""
    open = texts.before.strip().removesuffix("[").rstrip()
    close = texts.after.strip().removeprefix("]").lstrip()
    if not open and IDENTIFIER in texts.begin:
        raise UnknownFormError("a call begins with its id")
    if not open:
        return {"open_pattern": r"^\s*(?=\{)", **({"close": turn_ends} if turn_ends else {})}
    if not marks_in(open):
        raise UnknownFormError("no mark begins the calls")
    closes = [close] if close else turn_ends
    return {"open": open, **({"close": closes} if closes else {})}


def named_call(texts: CallTexts, tags: TagArguments | None, turn_ends: list[str]) -> dict[str, Any]:
    """Return the field of calls whose name stands before their arguments, and in none of them."""
    if not texts.begin.strip() or not marks_in(f"{texts.before}{texts.begin}NAME{texts.middle}"):
        raise UnknownFormError("no mark begins a call")
    begin, quote, middle = attribute(texts.begin, texts.middle)
    pattern = f"{quote}{NAME}{quote}{escaped(middle)}"
    field: dict[str, Any] = {**beginning(texts, begin, pattern), "repeats": True}
    if tags is None:
        field |= {**ending(texts.end, texts.begin, turn_ends), "content": "json"}
    else:
        field |= {"close_pattern": escaped(texts.end), "content": "xml-inline"}
        field["content_args"] = {
            "tag_pattern": tag_pattern(tags),
            **({"python": True} if tags.python else {}),
        }
        if not texts.end.strip():
            raise UnknownFormError("nothing ends a call with tags")
    return {**field, "transform": CALLED}


def beginning(texts: CallTexts, begin: str, rest: str = "") -> dict[str, str]:
    """Return the beginning of a call, before which that of all calls may be. rest: a pattern."""
    before, text = texts.before.strip(), begin.strip()
    if not before and not rest and "\n" not in text:
        return {"open": text}
    section = rf"(?:{escaped(before)}\s*)?" if before else ""
    return {"open_pattern": f"{section}{escaped(begin.lstrip() if rest else text)}{rest}"}


def ending(after: str, begin: str, turn_ends: list[str]) -> dict[str, str]:
    """Return the end of a call in JSON: the mark after it, or the beginning of the next."""
    marks = marks_in(after)
    if marks:
        return {"close": marks[0]}
    if after.strip():
        raise UnknownFormError("no mark ends a call")
    return {"close_pattern": "|".join([f"(?={escaped(begin)})", *map(re.escape, turn_ends)])}


def tag_pattern(tags: TagArguments) -> str:
    """Return the pattern of an argument. One line end before and after a value is optional where it is written."""
    space = tags.close[: len(tags.close) - len(tags.close.lstrip())]
    open, quote, rest = attribute(tags.open, tags.middle)
    middle, other = before_value(rest), before_value(attribute(tags.open, tags.other_middle)[2])
    if middle != other:
        middle = f"(?:(?P<text>{middle})|{other})"
    excluded = "\"'" if quote else re.escape(tags.middle.strip()[0])
    key = rf"{quote}(?P<key>[^{excluded}\n]{{1,256}}){quote}"
    after = r"\n?" if space == "\n" else escaped_exactly(space)
    return f"{escaped(open)}{key}{middle}(?P<value>.*?){after}{escaped(tags.close.strip())}"


def attribute(before: str, after: str) -> tuple[str, str, str]:
    """Return the texts around a value without its quotes, if it is an attribute's, and the pattern of optional ones."""
    if before.endswith('="') and after.startswith('"'):
        return before[:-1], "[\"']?", after[1:]
    return before, "", after


def before_value(text: str) -> str:
    """Return the pattern of the text before a value, of which white space at the end may be the value's."""
    fixed = text.rstrip()
    space = text[len(fixed) :]
    return escaped(fixed) + (r"\n?" if space == "\n" else escaped_exactly(space))


def escaped(text: str) -> str:
    """Return the pattern of a fixed text, whose line ends and outer spaces are optional."""
    parts = re.split(r"(^\s+|\s*\n\s*|\s+$)", text)
    return "".join(r"\s*" if part.isspace() else escaped_exactly(part) for part in parts if part)


def escaped_exactly(text: str) -> str:
    """Return the pattern of a fixed text, with the patterns of what differs from call to call."""
    parts = [PATTERNS.get(part) or re.escape(part) for part in FIND_HOLE.split(text) if part]
    return "".join(parts).replace("\\\n", r"\n")


def answer_fields(
    reasoning: tuple[str, str] | None,
    calls: Mapping[str, Any],
    wrapper: tuple[str, str] | None,
    ends: list[str],
) -> dict[str, Any]:
    """Return the fields of a response template for all of an answer."""
    fields: dict[str, Any] = {}
    if reasoning is not None:
        fields["reasoning_content"] = {"open": reasoning[0], "close": reasoning[1]}
    fields |= calls
    if wrapper is not None:
        fields["response"] = {"open": wrapper[0], "close": wrapper[1]}
    fields["content"] = {"close": ends} if ends else {}
    return fields
