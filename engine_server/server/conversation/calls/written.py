"""Calls as text, as a grammar of their form lets a model write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.calls.grammars.keywords import write_keywords
from engine_server.server.conversation.calls.grammars.literals import IDENTIFIER, INDEX, TYPE
from engine_server.structured.schemas.values import json_type

# An id of the form that all templates allow.
ID = "Ubirtqka1"

# Types by other names in tags.
TAG_TYPES = {"integer": "number"}


def write_calls(form: CallForm, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> str:
    """Return calls as text. calls: for each the tool's name and its arguments, which are text if they are no object."""
    texts = [write_call(form, index, *call) for index, call in enumerate(calls)]
    return form.before + form.separator.join(texts) + form.after


def write_call(form: CallForm, index: int, name: str, arguments: Mapping[str, Any] | str) -> str:
    beginning, middle, end = (
        text.replace(INDEX, str(index)).replace(IDENTIFIER, ID)
        for text in (form.beginning, form.middle.replace("NAME", name), form.end)
    )
    if form.quote is not None and not isinstance(arguments, str):
        written = write_dialect(arguments, form.quote)
    elif form.keywords is None and form.tag is None:
        written = json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str):
        written = arguments
    elif form.keywords is not None:
        written = write_keywords(arguments, form.keywords)
    else:
        written = "".join(write_argument(form, *argument) for argument in arguments.items())
    return f"{beginning}{name}{middle}{written}{end}"


def write_argument(form: CallForm, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    tag = form.tag if is_text else form.other_tag or form.tag
    assert tag is not None
    written = value if is_text else json.dumps(value, ensure_ascii=False)
    before, _, rest = tag.partition("KEY")
    middle, _, after = rest.partition("VALUE")
    return f"{before}{key}{middle.replace(TYPE, TAG_TYPES.get(json_type(value), json_type(value)))}{written}{after}"


def write_dialect(value: Any, quote: str) -> str:
    """Return a value as JSON with bare keys, and strings between quotes of their own."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{write_dialect(one, quote)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(write_dialect(one, quote) for one in value) + "]"
    return json.dumps(value)
