"""The formats of answers as plain data: those of `formats.yaml`, and those that a template or a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from engine_server.engine.conversation.capabilities import REASONING_FIELDS
from engine_server.server.conversation.channels import Channels
from engine_server.server.conversation.response_template import CALL_FIELD, VARIANT

FORMATS = "formats.yaml"
Entry = Mapping[str, Any]


@cache
def written_formats() -> dict[str, Entry]:
    """Return the formats of `formats.yaml` by name."""
    formats: dict[str, Entry] = yaml.safe_load(files(__package__).joinpath(FORMATS).read_text("utf-8"))
    return formats


def formats_in(template: str) -> list[str]:
    """Return the names of the formats whose marks a chat template has."""
    return [
        name for name, entry in written_formats().items() if all(mark in template for mark in entry["marks"])
    ]


def format_in_words() -> str:
    """Return the name of the format for models whose chat templates take no tools."""
    return next(name for name, entry in written_formats().items() if entry.get("in_words"))


def fitted(entry: Entry, template: str, reasoning: tuple[str, str] | None) -> dict[str, Any]:
    """Return a format with the reasoning of a chat template.

    reasoning: delimiters in place of those that a format has, unless the template has the mark of its own.
    """
    if "channels" in entry:
        return dict(entry)
    fields = dict(entry.get("template", {"fields": {"content": {}}})["fields"])
    if entry.get("reasoning_mark", "\0") not in template:
        fields.pop(REASONING_FIELDS[0], None)
        if reasoning is not None:
            open, close = reasoning
            fields = {REASONING_FIELDS[0]: {"open": open, "close": close}, **fields}
    return {**entry, "template": {"fields": fields}}


def response_template(entry: Entry) -> tuple[dict[str, Any], Channels | None]:
    """Return the response template of a format, and its channels."""
    if "channels" in entry:
        channels = Channels(**entry["channels"])
        return channels.template(), channels
    template = entry["template"]
    fields = dict(template["fields"])
    for number, variant in enumerate(entry.get("variants", ()), 1):
        fields[f"{VARIANT}{number}"] = {**fields[CALL_FIELD], **variant}
    return {"start_anchor": "\0", **template, "fields": fields}, None
