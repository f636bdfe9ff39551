"""The layout of a model's answers, from a file, its tokenizer or our formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import yaml

from engine_server.requests.reasoning import Mark
from engine_server.server.conversation.calls.form import CallForm
from engine_server.server.conversation.channels import Channels
from engine_server.server.conversation.layout import AnswerRegions, Layout, ReasoningMarks
from engine_server.server.conversation.marks import MarkTokens
from engine_server.server.conversation.response_template import CALL_FIELD, REASONING_FIELDS, read_regions
from engine_server.server.generation.answer_start import USER_TURNS, opening_of

FORMATS = "formats.yaml"
# The end of an opening within the reasoning, and after an empty one.
MARK = r"(?P<bracket>[<\[])(?P<name>[A-Za-z][\w:-]*)(?P<end>[>\]])"
OPENED = re.compile(rf"{MARK}\s*$")
LEFT_EMPTY = re.compile(rf"{MARK}\s*(?P=bracket)/(?P=name)(?P=end)\s*$")
# The variables by which chat templates switch the reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")


def find_layout(tokenizer: Any, file: Path | None) -> Layout:
    """Return the layout that `file` has, else the tokenizer's own, else ours. Raises ValueError for a bad template."""
    chat_template = chat_template_text(tokenizer)
    takes_tools = "tools" in template_variables(chat_template)
    name, ours = our_format(chat_template, takes_tools)
    channels = Channels(**ours["channels"]) if "channels" in ours else None
    if file is not None:
        name, channels = str(file), None
        template: dict[str, Any] | None = read_template(file)
    elif getattr(tokenizer, "response_template", None):
        name, channels, template = "the tokenizer's own", None, tokenizer.response_template
    elif channels is not None:
        template = channels.template()
    else:
        template = our_template(tokenizer, chat_template, ours)
    layout = Layout(
        name=name,
        call=CallForm(**ours["call"]) if "call" in ours else None,
        channels=channels,
        call_id=ours.get("call_id"),
        data=template,
        takes_tools=takes_tools,
        text_arguments=takes_tools and needs_text_arguments(tokenizer),
        object_arguments=takes_tools and needs_object_arguments(tokenizer),
    )
    return layout if template is None else with_regions(layout, tokenizer, template)


def with_regions(layout: Layout, tokenizer: Any, template: dict[str, Any]) -> Layout:
    """Return a layout with the regions of a response template. Raises ValueError for an invalid one."""
    channels = layout.channels
    try:
        with_calls = read_regions(added_tokens(tokenizer), template, channels)
        textual = without_field(template, CALL_FIELD)
        without = channels and replace(channels, calls=False)
        without_calls = (
            read_regions(added_tokens(tokenizer), textual, without) if textual["fields"] else AnswerRegions()
        )
    except ValueError as error:
        raise ValueError(f"invalid response template of {layout.name}: {error}") from None
    marks = reasoning_marks(tokenizer, template, channels, with_calls.marks)
    return replace(
        layout,
        with_calls=with_calls,
        without_calls=without_calls,
        reasoning=marks,
        call_marks=call_marks(with_calls),
    )


def call_marks(regions: AnswerRegions) -> tuple[Mark, ...]:
    """Return the tokens that begin a call, in the reasoning too."""
    found = {
        first: Mark(regions.marks.plain(first), [regions.marks.token_of_character(first)], True)
        for region in regions.regions
        if region.interrupts and region.open is not None
        for first in region.open.first_characters
    }
    return tuple(found.values())


def our_template(tokenizer: Any, chat_template: str, ours: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the response template of one of our formats, with the reasoning that the chat template has."""
    template: dict[str, Any] | None = ours.get("template")
    if template and ours.get("reasoning_mark", "\0") not in chat_template:
        template = without_field(template, REASONING_FIELDS[0])
    if template is None or REASONING_FIELDS[0] not in template["fields"]:
        found = reasoning_of_openings(tokenizer, chat_template)
        if found is not None:
            fields = template["fields"] if template else {"content": {}}
            template = {
                "start_anchor": "\0",
                **(template or {}),
                "fields": {REASONING_FIELDS[0]: found, **fields},
            }
    return template and {"start_anchor": "\0", **template}


def reasoning_of_openings(tokenizer: Any, chat_template: str) -> dict[str, str] | None:
    """Return the delimiters of a reasoning that the chat template opens or leaves empty; None if there is none."""
    for switch in SWITCHES:
        on, off = (
            opening_of(tokenizer, USER_TURNS, chat_template, {switch: value}) for value in (True, False)
        )
        if on is None or off is None or on == off:
            continue
        opened, left_empty = OPENED.search(on), LEFT_EMPTY.search(off)
        if opened is not None and not off.endswith(opened[0]):
            return pair_of_marks(opened)
        if left_empty is not None:
            return pair_of_marks(left_empty)
    return None


def pair_of_marks(found: re.Match[str]) -> dict[str, str]:
    bracket, name, end = found.group("bracket", "name", "end")
    return {"open": f"{bracket}{name}{end}", "close": f"{bracket}/{name}{end}"}


def reasoning_marks(
    tokenizer: Any, template: Mapping[str, Any], channels: Channels | None, marks: MarkTokens
) -> ReasoningMarks | None:
    """Return the delimiters of the reasoning of a response template; None if it has none, or patterns."""
    if channels is not None:
        start, end = [channels.reasoning_start], channels.end
    else:
        field = next((template["fields"][key] for key in REASONING_FIELDS if key in template["fields"]), None)
        if field is None or not field.get("close"):
            return None
        start, end = as_list(field.get("open") or []), as_list(field["close"])
    others = [
        text for key, one in template["fields"].items() if key not in REASONING_FIELDS for text in texts(one)
    ]
    return ReasoningMarks(
        tuple(mark_of(tokenizer, text, marks, others) for text in start),
        tuple(mark_of(tokenizer, text, marks, others=None) for text in end),
    )


def mark_of(tokenizer: Any, text: str, marks: MarkTokens, others: list[str] | None) -> Mark:
    """Return a delimiter of the reasoning.

    others: the delimiters of other regions, for a beginning of which the first token is enough where no other has it.
    """
    token_ids = list(tokenizer(text, add_special_tokens=False).input_ids)
    marked = marks.marked(text)
    exact = not marks.spelled and marks.begins(marked) and len(marked) == 1
    if not exact and not marks.spelled and others is not None and marks.begins(marked):
        first = marks.plain(marked[0])
        if not any(first in other.replace("\\", "") for other in others):
            return Mark(first, [token_ids[0]], True)
    return Mark(text, token_ids[:1] if exact else token_ids, exact)


def texts(field: Mapping[str, Any]) -> list[str]:
    """Return the beginnings of a region, texts or patterns."""
    return as_list(field.get("open") or field.get("open_pattern") or [])


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def without_field(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**template, "fields": {key: field for key, field in template["fields"].items() if key != name}}


def chat_template_text(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template or ""


def template_variables(chat_template: str) -> set[str]:
    """Return the variables that a chat template reads."""
    environment = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])  # noqa: S701  (no HTML)
    text = chat_template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    try:
        return jinja2.meta.find_undeclared_variables(environment.parse(text))
    except jinja2.TemplateError:
        return {"tools"} if "tools" in chat_template else set()


def needs_text_arguments(tokenizer: Any) -> bool:
    """Return whether the chat template writes arguments as JSON only if they are text. Most do so with objects."""
    try:
        text = render_call(tokenizer, {"probe": "value"})
    except jinja2.TemplateError:
        return False
    except TypeError:
        return True
    return "{'probe'" in text


def needs_object_arguments(tokenizer: Any) -> bool:
    """Return whether the chat template fails on arguments that are text."""
    try:
        render_call(tokenizer, '{"probe')
    except (jinja2.TemplateError, TypeError, ValueError):
        return True
    return False


def render_call(tokenizer: Any, arguments: dict[str, Any] | str) -> str:
    """Return a conversation with one call as the chat template renders it."""
    call = {"id": "probe1234", "type": "function", "function": {"name": "probe", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    return str(tokenizer.apply_chat_template(messages, tokenize=False))


def our_format(chat_template: str, takes_tools: bool) -> tuple[str, dict[str, Any]]:
    """Return the first of our formats whose marks are in a chat template; for one without tools that in words."""
    formats: dict[str, dict[str, Any]] = yaml.safe_load(
        files(__package__).joinpath(FORMATS).read_text("utf-8")
    )
    for name, found in formats.items():
        if all(mark in chat_template for mark in found["marks"]):
            return name, found
    if chat_template and not takes_tools:
        return next((name, found) for name, found in formats.items() if found.get("in_words"))
    return "plain text", {}


def read_template(file: Path) -> dict[str, Any]:
    """Return the response template in a file, which is JSON or YAML."""
    try:
        template = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"can't read the response template {file}: {error}") from None
    if not isinstance(template, dict):
        raise ValueError(f"the response template {file} is not an object")
    return template


def added_tokens(tokenizer: Any) -> dict[int, str]:
    return {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
