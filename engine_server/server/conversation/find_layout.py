"""The layout of a model's answers, from a file, its tokenizer, our formats or its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from engine_server.engine.conversation.chat_template import ChatTemplate
from engine_server.server.conversation.build_layout import with_regions
from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.derivation.derive import Derived, NotDerived
from engine_server.server.conversation.derivation.facts import TemplateFacts, facts_of
from engine_server.server.conversation.formats import (
    Entry,
    fitted,
    format_in_words,
    response_template,
    written_formats,
)
from engine_server.server.conversation.layout import Layout

# A file with one of these keys is a format of ours, and no response template of transformers.
OURS = {"template", "channels", "call"}


class Format(NamedTuple):
    """A format of answers, and where it is from."""

    source: str
    entry: Entry


def find_layout(tokenizer: Any, file: Path | None, facts: TemplateFacts | None = None) -> Layout:
    """Return the layout that `file` has, else the first that another source has. Raises ValueError for a bad file.

    facts: those of the tokenizer's chat template; None to find them here.
    """
    template = ChatTemplate.of(tokenizer)
    facts = facts_of(template) if facts is None else facts
    found = find_format(template, facts, file, getattr(tokenizer, "response_template", None))
    layout = Layout(
        name=found.source,
        call=call_form(found),
        call_id=found.entry.get("call_id"),
        takes_tools=template.takes_tools,
        variables=template.variables,
        capabilities=facts.capabilities,
        refusals=refusals(facts),
    )
    if not found.entry.keys() & {"template", "channels"}:
        return layout
    data, channels = response_template(found.entry)
    return with_regions(
        replace(layout, data=data, channels=channels),
        template.added_tokens,
        lambda text: tokenizer(text, add_special_tokens=False).input_ids,
    )


def find_format(
    template: ChatTemplate, facts: TemplateFacts, file: Path | None, own: Mapping[str, Any] | None
) -> Format:
    """Return the format of a model's answers. own: the tokenizer's response template."""
    found = format_of_template(template, facts)
    if file is not None:
        given = read_file(file)
        return Format(str(file), given if OURS & given.keys() else with_template(found.entry, given))
    return found if own is None else Format("the tokenizer's own", with_template(found.entry, own))


def format_of_template(template: ChatTemplate, facts: TemplateFacts) -> Format:
    """Return the format of the answers that a chat template prints, or asks for."""
    name = facts.written
    if name is None and template.text and not template.takes_tools and isinstance(facts.form, NotDerived):
        name = format_in_words()
    if name is not None:
        return Format(name, fitted(written_formats()[name], template.text, facts.reasoning))
    if isinstance(facts.form, Derived):
        return Format("derived", facts.form.entry)
    return Format("plain text", fitted({}, "", facts.reasoning) if facts.reasoning else {})


def with_template(entry: Entry, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a format with another response template."""
    return {**{key: value for key, value in entry.items() if key != "channels"}, "template": template}


def call_form(found: Format) -> CallForm | None:
    """Return the form of the calls of a format. Raises ValueError for an invalid one."""
    call = found.entry.get("call")
    try:
        return None if call is None else CallForm(**call)
    except TypeError as error:
        raise ValueError(f"invalid form of calls of {found.source}: {error}") from None


def refusals(facts: TemplateFacts) -> tuple[str, ...]:
    """Return why formats were not used, for a person."""
    derived = (f"derived: {facts.form.reason}",) if isinstance(facts.form, NotDerived) else ()
    return (*(f"{name}: {reason}" for name, reason in facts.refuted.items()), *derived)


def read_file(file: Path) -> dict[str, Any]:
    """Return the format or the response template in a file, which is JSON or YAML."""
    try:
        template = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"can't read the response template {file}: {error}") from None
    if not isinstance(template, dict):
        raise ValueError(f"the response template {file} is not an object")
    return template
