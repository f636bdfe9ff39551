"""A model's chat template and the tokens that it names, which is all that a rendering depends on besides a history."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
import msgspec

# Templates whose variables are kept, since each request renders one.
MAX_TEMPLATES = 32
# Parameters of transformers' apply_chat_template and names that it defines for every template.
RESERVED_VARIABLES = frozenset(
    (
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length", "messages",
        "padding", "raise_exception", "return_assistant_tokens_mask", "return_dict", "return_tensors", "strftime_now",
        "tokenize", "tokenizer_kwargs", "tools", "truncation", "self",
        "bos_token", "cls_token", "eos_token", "mask_token", "pad_token", "sep_token", "unk_token",
        "additional_special_tokens",
    )
)  # fmt: skip
# Of a short conversation with three tools.
MAX_CHARACTERS = 200_000
# The variables from which templates read tools, of which the first is the usual one.
TOOL_VARIABLES = ("tools", "xml_tools")
# Reads the tools, as JSON text, of a field of the system's message.
READS_SYSTEMS_TOOLS = re.compile(r"message(\.tools\b|\[['\"]tools['\"]\])")


class TemplateRefusedError(Exception):
    """A template raised an error for what it was given."""


class TemplateFaultError(TemplateRefusedError):
    """A template can't be rendered, whatever it is given: it is invalid, or does what its sandbox forbids."""


class ChatTemplate(msgspec.Struct, frozen=True):
    """A chat template, without its tokenizer. Renderings equal those of transformers' `apply_chat_template`."""

    text: str
    # By their names, such as "bos_token", which templates read as variables.
    special_tokens: dict[str, Any] = {}
    # The texts of the tokenizer's added tokens, by id.
    added_tokens: dict[int, str] = {}

    @classmethod
    def of(cls, tokenizer: Any) -> ChatTemplate:
        """Return the template of a tokenizer; of several the one for tools. Its text is empty where there is none."""
        text = tokenizer.chat_template
        if isinstance(text, dict):
            text = text.get("tool_use") or text.get("default")
        tokens = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        return cls(text or "", dict(tokenizer.special_tokens_map), tokens)

    @classmethod
    def chosen(
        cls, tokenizer: Any, given: str | None, tools: Sequence[Mapping[str, Any]] | None
    ) -> ChatTemplate:
        """Return the given template, or a tokenizer's for these tools. Raises ValueError if there is none."""
        return cls(tokenizer.get_chat_template(given, tools), dict(tokenizer.special_tokens_map))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        opens: bool = False,
        variables: Mapping[str, Any] | None = None,
        *,
        continues: bool = False,
    ) -> str:
        """Return a conversation as text. Raises TemplateRefusedError.

        opens: with the beginning of the answer. continues: up to the last message's text.
        """
        # Not with this module, since a server listens first; the tokenizer has imported it by now.
        from transformers.utils.chat_template_utils import render_jinja_template

        given = [{key: value for key, value in message.items() if value is not None} for message in messages]
        definitions: list[Any] | None = None if tools is None else [dict(tool) for tool in tools]
        read: dict[str, Any] = {**self.special_tokens, **(variables or {})}
        if definitions and self.tools_place == "system":
            given = with_tools_of_system(given, definitions)
        elif self.tools_place in TOOL_VARIABLES[1:]:
            read.setdefault(self.tools_place, definitions)
        try:
            rendered: Any = render_jinja_template(
                conversations=[given],
                tools=definitions,
                chat_template=self.text,
                add_generation_prompt=opens,
                continue_final_message=continues,
                **read,
            )
        except (jinja2.exceptions.SecurityError, jinja2.TemplateSyntaxError) as error:
            raise TemplateFaultError(str(error)) from None
        except Exception as error:  # a template may raise any
            raise TemplateRefusedError(str(error)) from None
        return str(rendered[0][0])

    def probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        opens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Do the same for a short conversation. Raises TemplateRefusedError for a long text too."""
        rendered = self.render(messages, tools or None, opens, variables)
        if len(rendered) > MAX_CHARACTERS:
            raise TemplateRefusedError(f"a short conversation is printed with {len(rendered)} characters")
        return rendered

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template reads."""
        return variables_of(self.text)

    @property
    def tools_place(self) -> str | None:
        """The variable that has the tools, or "system" for a field of the system's message; None for neither."""
        return tools_place_of(self.text)

    @property
    def takes_tools(self) -> bool:
        return self.tools_place is not None


def with_tools_of_system(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of which the first is the system's and has the tools as JSON text."""
    functions = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": functions}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": functions}, *messages]


@lru_cache(MAX_TEMPLATES)
def variables_of(template: str) -> frozenset[str]:
    environment = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])  # noqa: S701  (no HTML)
    text = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(text)))
    except jinja2.TemplateError:
        return frozenset({"tools"} if "tools" in template else ())


@lru_cache(MAX_TEMPLATES)
def tools_place_of(template: str) -> str | None:
    for variable in TOOL_VARIABLES:
        if variable in variables_of(template):
            return variable
    return "system" if READS_SYSTEMS_TOOLS.search(template) else None
