#!/usr/bin/env bash
# Packages: llguidance 1.9.1. Behaviour: an optional property whose schema no value matches is left out of the grammar
# if the schema stands in its place, so that the object is generated without it. If the same schema stands in `$defs`
# and the property refers to it, the whole schema is refused: "Unsatisfiable schema". JSON Schema says of both that the
# object is valid without the property.
# Fails if either changes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
impossible = {"allOf": [{"type": "string"}, {"type": "integer"}]}


def matcher_of(value, **definitions):
    schema = {
        "type": "object",
        "properties": {"retries": value, "note": {"type": "null"}},
        "additionalProperties": False,
        **definitions,
    }
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)


inline = matcher_of(impossible)
referred = matcher_of({"$ref": "#/$defs/Retries"}, **{"$defs": {"Retries": impossible}})
accepted = not inline.is_error()
if accepted:
    accepted = bool(inline.consume_tokens(tokenizer.tokenize_str('{"note":null}'))) and inline.is_accepting()
print("llguidance", version("llguidance"))
print("in its place:", "the object without the property is accepted" if accepted else inline.get_error())
print("by reference:", referred.get_error().splitlines()[0] if referred.is_error() else "the schema is accepted")
sys.exit(0 if accepted and referred.is_error() and "Unsatisfiable" in referred.get_error() else 1)
PYTHON
