"""Translation of structured-output parameters to llguidance's grammars, in its variant of Lark's syntax.

Its syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Mapping

import llguidance
import msgspec
from llguidance.gbnf_to_lark import any_to_lark

from engine_server.contract.base.quoting import quote
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.errors import GrammarError
from engine_server.structured.schema import json_rule, parse_json, without_additional_properties
from engine_server.structured.structural_tag import tag_grammar

# Otherwise a mask allows only one tokenization of text that has no alternative.
HEADER = '%llguidance {"no_forcing": true}\n'
# The name of the second grammar, that of the parameters' `form`.
FORM = "form"
# What may contain an @ that is no reference to a grammar (strings, regular expressions, comments), and references.
REFERENCE = re.compile(
    r'"(?:\\.|[^"\\])*"|/(?!/)(?:\\.|[^/\\])+/|//[^\n]*|#[^\n]*|@(?P<name>[\w-]+)', re.DOTALL
)


def grammar_text(params: StructuredOutputsParams, special_tokens: Mapping[str, int]) -> str:
    """Return the grammar of an output: Lark's text, or llguidance's list of grammars as JSON if there is a form.

    special_tokens: token ids by their names, which structural tags may contain. Raises GrammarError.
    """
    grammar = HEADER + _rules(params, special_tokens)
    if params.form is None:
        return grammar
    form = HEADER + _rules(params.form, special_tokens)
    # The first has no name, so that the second can't refer to it.
    grammars = [{"lark_grammar": grammar}, {"name": FORM, "lark_grammar": form}]
    return msgspec.json.encode({"grammars": grammars}).decode()


def _rules(params: StructuredOutputsParams, special_tokens: Mapping[str, int]) -> str:
    if params.json_object:
        return f"start: {json_rule({'type': 'object'}, _json_options(params))}"
    if params.json is not None:
        schema = parse_json(str(params.json), "json")
        if params.disable_additional_properties:
            schema = without_additional_properties(schema)
        return f"start: {json_rule(schema, _json_options(params))}"
    if params.regex is not None:
        return f"start: /{llguidance.regex_to_lark(params.regex, '')}/"
    if params.choice is not None:
        return f"start: {' | '.join(quoted(text) for text in params.choice)}"
    if params.structural_tag is not None:
        return tag_grammar(parse_json(params.structural_tag, "structural_tag"), special_tokens)
    try:
        lark = any_to_lark(params.grammar or "")
    except Exception as error:  # it has no class of its own for its errors
        raise GrammarError(f"the grammar is not valid GBNF: {error}") from error
    _check_references(lark, has_form=params.form is not None)
    return lark


def _check_references(lark: str, has_form: bool) -> None:
    """Raise GrammarError for a reference to another grammar than the form."""
    for found in REFERENCE.finditer(lark):
        if (name := found["name"]) and not (has_form and name == FORM):
            raise GrammarError(
                f"the grammar refers to another one, {quote('@' + name)}, which does not exist"
            )


def _json_options(params: StructuredOutputsParams) -> dict[str, object] | None:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": params.whitespace_pattern} if params.whitespace_pattern else None


def quoted(text: str) -> str:
    """Return a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
