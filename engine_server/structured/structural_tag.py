"""Structural tags: parts of a text that match a schema, such as tool calls.

Two forms of description are taken, both vLLM's and xgrammar's:
{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}: free text, in which a trigger
    must continue as one of the tags that begin with it.
{"type": "structural_tag", "format": FORMAT}, where FORMAT has the type
    "triggered_tags": the same with "tags", and "at_least_one" and "stop_after_first" as options;
    "tags_with_separator": tags with the text "separator" between them and nothing else, with the same options;
    "tag": exactly one tag.
A tag of a format is {"begin", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end"}.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_server.structured.errors import GrammarError
from engine_server.structured.schema import json_rule


class JsonContent(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """The content of a tag."""

    json_schema: dict[str, Any]


class Tag(msgspec.Struct, tag_field="type", tag="tag", forbid_unknown_fields=True):
    """Text that begins and ends as given."""

    begin: str
    content: JsonContent
    end: str


class TriggeredTags(msgspec.Struct, tag_field="type", tag="triggered_tags", forbid_unknown_fields=True):
    """Free text with tags."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class SeparatedTags(msgspec.Struct, tag_field="type", tag="tags_with_separator", forbid_unknown_fields=True):
    """Tags and separators alone."""

    tags: list[Tag]
    separator: str = ""
    at_least_one: bool = False
    stop_after_first: bool = False


class Structure(msgspec.Struct, forbid_unknown_fields=True):
    """A tag of the older form."""

    begin: str
    schema: dict[str, Any]
    end: str


class Structures(msgspec.Struct, forbid_unknown_fields=True):
    """A description of the older form."""

    type: str
    structures: list[Structure]
    triggers: list[str]


class Formatted(msgspec.Struct, forbid_unknown_fields=True):
    """A description with a format."""

    type: str
    format: TriggeredTags | SeparatedTags | Tag


def tag_grammar(description: Any, special_tokens: Mapping[str, int]) -> str:
    """Return the Lark grammar of a structural tag. Raises GrammarError."""
    if not isinstance(description, dict) or description.get("type") != "structural_tag":
        raise GrammarError('structural_tag is an object with the type "structural_tag"')
    literals = Literals(special_tokens)
    match read(description):
        case Tag() as tag:
            return f"start: {literals.tag(tag)}"
        case SeparatedTags() as format:
            return _separated(format, literals)
        case TriggeredTags() as format:
            return _triggered(format, literals)


def read(description: dict[str, Any]) -> TriggeredTags | SeparatedTags | Tag:
    """Return a description's format; that of the older form is triggered_tags."""
    try:
        if "format" in description:
            return msgspec.convert(description, Formatted).format
        older = msgspec.convert(description, Structures)
    except msgspec.ValidationError as error:
        raise GrammarError(f"structural_tag: {error}") from error
    tags = [Tag(one.begin, JsonContent(one.schema), one.end) for one in older.structures]
    return TriggeredTags(older.triggers, tags)


class Literals:
    """Text in Lark's syntax. A special token, which no text contains, is written as its id."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        names = sorted(special_tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) if names else "(?!)")

    def pieces(self, text: str) -> list[str]:
        """Return the text as a sequence of literals."""
        pieces, end = [], 0
        for found in self._pattern.finditer(text):
            pieces += [json.dumps(text[end : found.start()], ensure_ascii=False)] * (found.start() > end)
            pieces.append(f"<[{self._special_tokens[found[0]]}]>")
            end = found.end()
        return pieces + [json.dumps(text[end:], ensure_ascii=False)] * (end < len(text))

    def tag(self, tag: Tag, trigger: str = "") -> str:
        """Return the body of a rule for a tag, without the trigger that it begins with."""
        begin = self.pieces(tag.begin[len(trigger) :])
        return " ".join([*begin, json_rule(tag.content.json_schema), *self.pieces(tag.end)])


def _separated(format: SeparatedTags, literals: Literals) -> str:
    rules = [f"tag: {' | '.join(_names(format.tags))}"]
    rules += [f"tag_{number}: {literals.tag(tag)}" for number, tag in enumerate(format.tags)]
    more = "" if format.stop_after_first else f" ({' '.join([*literals.pieces(format.separator), 'tag'])})*"
    calls = f"tag{more}"
    return "\n".join([f"start: {calls if format.at_least_one else f'({calls})?'}", *rules])


def _triggered(format: TriggeredTags, literals: Literals) -> str:
    rules = [r"TEXT: /(.|\n)*/"]
    for number, trigger in enumerate(format.triggers):
        first, *rest = literals.pieces(trigger) or [""]
        if not first:
            raise GrammarError("structural_tag has an empty trigger")
        # A lazy rule ends at the first occurrence of the text.
        lazy = "[lazy]" if first.startswith('"') else ""
        rules.append(f"found_{number}{lazy}: TEXT {first}")
        rules.append(f"trigger_{number}: {' '.join([f'found_{number}', *rest])}")
    for number, tag in enumerate(format.tags):
        found = [index for index, trigger in enumerate(format.triggers) if tag.begin.startswith(trigger)]
        if not found:
            raise GrammarError("structural_tag has a tag that begins with none of its triggers")
        body = literals.tag(tag, format.triggers[found[0]])
        rules.append(f"tag_{number}: trigger_{found[0]} {body}")
    any_tag = f"({' | '.join(_names(format.tags))})"
    if format.stop_after_first:
        start = any_tag if format.at_least_one else f"{any_tag} | TEXT"
    else:
        start = f"{any_tag}{'+' if format.at_least_one else '*'} TEXT"
    return "\n".join([f"start: {start}", *rules])


def _names(tags: Sequence[Tag]) -> list[str]:
    if not tags:
        raise GrammarError("structural_tag has no tags")
    return [f"tag_{number}" for number in range(len(tags))]
