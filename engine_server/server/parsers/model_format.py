"""The format in which the served model writes reasoning and tool calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import yaml
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template

from engine_server.requests.reasoning import Mark, Reasoning
from engine_server.server.parsers.call_format import ReaderFactory, reader_factory
from engine_server.server.parsers.regions import RegionScanner
from engine_server.server.parsers.template_parser import REASONING_FIELDS, ParsedAnswer
from engine_server.server.parsers.tool_grammar import CallForm
from engine_server.structured.schemas.arguments import ArgumentTypes

TEMPLATES = "response_templates.yaml"
# The format of models whose chat template takes no tools: they are described in the system's message.
FALLBACK = "hermes"
CALL_FIELD = "tool_calls"
# Unlimited white space at a delimiter's edge would make the search quadratic.
WHITESPACE_LIMIT = (r"\s*", r"\s{0,64}")


@dataclass(frozen=True)
class ModelFormat:
    """The format of one model's answers. All of it is empty for a model that neither reasons nor calls tools."""

    # The name of our format, or the origin of another.
    name: str
    # None for a model whose answers are plain text.
    template: ResponseTemplate | None
    call: CallForm | None
    short_call_ids: bool
    # The template as plain data.
    template_data: Mapping[str, Any] | None = None
    # The chat template has a place for tools.
    takes_tools: bool = True
    # The chat template takes the arguments of earlier calls as JSON text.
    text_arguments: bool = False
    # It takes them as an object alone, and fails on text.
    object_arguments: bool = False
    # Special tokens in the template's delimiters, and without those of calls, with their texts.
    markers: Mapping[int, str] = field(default_factory=dict)
    text_markers: Mapping[int, str] = field(default_factory=dict)
    # The delimiters of reasoning.
    reasoning_start: Mark | None = None
    reasoning_end: Mark | None = None
    # The bytes that each token adds to a text, which marks of text are found in.
    token_bytes: Sequence[bytes] = field(default=(), repr=False)

    @property
    def calls_tools(self) -> bool:
        return self.template is not None and CALL_FIELD in self.template.fields

    @cached_property
    def readers(self) -> Mapping[str, ReaderFactory]:
        if self.template is None or CALL_FIELD not in self.template.fields:
            return {}
        return {CALL_FIELD: reader_factory(self.template.fields[CALL_FIELD])}

    @cached_property
    def without_calls(self) -> ResponseTemplate | None:
        """The template for an answer without tools, None where that is plain text."""
        if self.template is None:
            return None
        template = copy.copy(self.template)
        template.fields = {name: field for name, field in template.fields.items() if name != CALL_FIELD}
        return template if any(field.open_re for field in template.fields.values()) else None

    def template_of(self, calls: bool) -> ResponseTemplate | None:
        """Return the template of an answer with or without calls, None where that is plain text."""
        return self.template if calls else self.without_calls

    def markers_of(self, calls: bool) -> Mapping[int, str]:
        """Return the special tokens that an answer's text needs, with their texts; none where it is plain text."""
        if self.template_of(calls) is None:
            return {}
        return self.markers if calls else self.text_markers

    def answer(
        self, answer_id: str, prompt: str, tools: Sequence[Mapping[str, Any]] | None, **options: bool
    ) -> ParsedAnswer | None:
        """Return the parsing of an answer, None where it is plain text.

        prompt: the prompt's text. tools: their definitions, None where the answer has no calls. options: those of
        ParsedAnswer.
        """
        template = self.template_of(tools is not None)
        if template is None:
            return None
        return ParsedAnswer(
            template,
            {} if tools is None else self.readers,
            answer_id,
            prompt,
            {
                tool["function"]["name"]: ArgumentTypes(tool["function"].get("parameters"))
                for tool in tools or ()
            },
            short_call_ids=self.short_call_ids,
            mark_texts=tuple(self.markers_of(tools is not None).values()),
            reasoning=self.reasoning(prompt),
            token_bytes=self.token_bytes,
            **options,
        )

    @property
    def limits_reasoning(self) -> bool:
        """True if the marks are known that end the reasoning."""
        return self.template is not None and self.reasoning_end is not None

    def reasoning(self, prompt: str, budget: int | None = None) -> Reasoning | None:
        """Return the reasoning of an answer to `prompt`, with a limit; None if the marks are not known."""
        if self.template is None or self.reasoning_end is None:
            return None
        marks = [mark for mark in (self.reasoning_start, self.reasoning_end) if mark is not None]
        if not self.token_bytes and not all(mark.exact for mark in marks):
            return None
        inside = RegionScanner(self.template, prompt).field in REASONING_FIELDS
        return Reasoning(start=marks[:-1], end=marks[-1:], inside=inside, budget=budget)

    def limited_reasoning(self, prompt: str, budget: int) -> Reasoning | None:
        """Return the reasoning of an answer to `prompt`, with a limit; None if the prompt leaves no reasoning."""
        return self.reasoning(prompt, budget) if self.reasoning_end_after(prompt) else None

    def reasoning_end_after(self, prompt: str) -> list[int] | None:
        """Return the tokens that end the reasoning of an answer to `prompt`; None if the prompt leaves no reasoning."""
        if self.template is None or self.reasoning_end is None:
            return None
        scanner = RegionScanner(self.template, prompt)
        reasoned = any(event.field in REASONING_FIELDS for event in scanner.prefix_events)
        closed = reasoned and scanner.field not in REASONING_FIELDS
        return None if closed else list(self.reasoning_end.token_ids)


def find_format(tokenizer: Any, file: Path | None, token_bytes: Sequence[bytes] = ()) -> ModelFormat:
    """Return the format that `file` has, else the tokenizer's own, else ours. Raises ValueError for a bad template.

    token_bytes: the bytes that each token adds to a text, if they are known.
    """
    chat_template = chat_template_text(tokenizer)
    takes_tools = "tools" in template_variables(chat_template)
    name, ours = our_format(chat_template, takes_tools)
    if file is not None:
        name = str(file)
        template: dict[str, Any] | None = read_template(file)
    elif getattr(tokenizer, "response_template", None):
        name, template = "the tokenizer's own", tokenizer.response_template
    else:
        template = ours.get("template")
        if template and ours.get("reasoning_mark", "\0") not in chat_template:
            template = without_field(template, "reasoning_content")
    call = CallForm(**ours["call"]) if "call" in ours else None
    loaded = None if template is None else load_template(name, template)
    reasoning = next(
        (loaded.fields[key] for key in REASONING_FIELDS if loaded and key in loaded.fields), None
    )
    return ModelFormat(
        name=name,
        template=loaded,
        call=call,
        short_call_ids=ours.get("call_id") == "short",
        template_data=template,
        takes_tools=takes_tools,
        text_arguments=takes_tools and needs_text_arguments(tokenizer),
        object_arguments=takes_tools and needs_object_arguments(tokenizer),
        markers=marker_tokens(tokenizer, template),
        text_markers=marker_tokens(tokenizer, template and without_field(template, CALL_FIELD)),
        reasoning_start=literal_mark(tokenizer, reasoning.open_literals if reasoning else None),
        reasoning_end=literal_mark(tokenizer, reasoning.close_literals if reasoning else None),
        token_bytes=token_bytes,
    )


def without_field(template: dict[str, Any], name: str) -> dict[str, Any]:
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
    formats = yaml.safe_load(files(__package__).joinpath(TEMPLATES).read_text("utf-8"))
    for name, found in formats.items():
        if all(mark in chat_template for mark in found["marks"]):
            return name, found
    if chat_template and not takes_tools:
        return FALLBACK, formats[FALLBACK]
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


def load_template(name: str, template: dict[str, Any]) -> ResponseTemplate:
    fields = template.get("fields")
    if isinstance(fields, dict):
        template = {**template, "fields": {key: bounded(field) for key, field in fields.items()}}
    try:
        return load_response_template(template)
    except ValueError as error:
        raise ValueError(f"invalid response template of {name}: {error}") from None


def bounded(field: Any) -> Any:
    if not isinstance(field, dict):
        return field
    patterns = {
        key: value.replace(*WHITESPACE_LIMIT)
        for key, value in field.items()
        if key in ("open_pattern", "close_pattern") and isinstance(value, str)
    }
    return {**field, **patterns}


def marker_tokens(tokenizer: Any, template: Any) -> dict[int, str]:
    """Return the special tokens that a template's delimiters mention, with their texts."""
    texts = [text.replace("\\", "") for text in strings(template)]
    specials = {
        token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    return {
        token_id: content
        for token_id, content in sorted(specials.items())
        if any(content in text for text in texts)
    }


def strings(value: Any) -> list[str]:
    """Return all strings in plain data."""
    if isinstance(value, str):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in values for text in strings(item)]


def literal_mark(tokenizer: Any, literals: Sequence[str] | None) -> Mark | None:
    """Return the mark of a delimiter; None for a pattern."""
    if not literals:
        return None
    token_ids = list(tokenizer(literals[0], add_special_tokens=False).input_ids)
    return Mark(literals[0], token_ids, exact=len(token_ids) == 1)
