"""Parameters that constrain an output to a grammar."""

from typing import Any

import msgspec

from engine_server.contract.base.bounds import SCHEMA_BYTES
from engine_server.requests import validation as valid
from engine_server.requests.errors import InvalidRequestError

# The parameters of which exactly one is given.
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# The parameters that change a JSON schema.
JSON_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


class StructuredOutputsParams(msgspec.Struct, kw_only=True, tag=True, omit_defaults=True):
    """A grammar that the output matches as a whole, with vLLM's names. Exactly one kind is given.

    json: a JSON schema, as JSON text or as a mapping. json_object: True; any JSON object.
    regex: a regular expression in the syntax of Rust's regex crate, without look-around.
    choice: the texts of which the output is one.
    grammar: a context-free grammar in llguidance's variant of Lark's syntax, or in GBNF, llama.cpp's EBNF.
    structural_tag: JSON text that describes tags within free text, each with its content's grammar.
    disable_any_whitespace: allow no whitespace between the tokens of JSON.
    whitespace_pattern: regular expression of the whitespace between two tokens of JSON.
    disable_additional_properties: allow no properties in objects but those that the schema names.
    disable_fallback: accepted as in vLLM; there is a single implementation, so it changes nothing.
    form: a grammar that `grammar` refers to as @form, each with names of its own. The server sets it.
    starts_after: tokens that end the reasoning before the constrained part; until they have been generated, every
        token is allowed.

    Raises InvalidRequestError, which names the parameter.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    form: "StructuredOutputsParams | None" = None
    starts_after: list[int] | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs has {' and '.join(given) or 'no grammar'}; it takes exactly one of "
                f"{', '.join(KINDS)}",
                "structured_outputs",
            )
        if self.form is not None and self.grammar is None:
            raise InvalidRequestError(f"form takes effect with grammar, not with {given[0]}", "form")
        self._check_kind()
        self._check_options(given[0])
        if self.starts_after is not None:
            self.starts_after = valid.tokens("starts_after", self.starts_after) or None

    @property
    def size(self) -> int:
        """The number of bytes of the grammar's description."""
        return len(msgspec.msgpack.encode(self))

    def check_size(self) -> None:
        """Raise InvalidRequestError for a description that is too large."""
        if message := SCHEMA_BYTES.exceeded(self.size):
            raise InvalidRequestError(message, "structured_outputs")

    def _check_kind(self) -> None:
        if isinstance(self.json, dict):
            self.json = to_json("json", self.json)
        for name in ("json", "regex", "grammar", "structural_tag"):
            value = getattr(self, name)
            if value is not None:
                valid.text(name, value)
        if self.choice is not None:
            self.choice = valid.items("choice", self.choice, valid.text)
            if not self.choice:
                valid.refuse_value("choice", self.choice, "`list` of length >= 1")
        if self.json_object is not None:
            valid.flag("json_object", self.json_object)

    def _check_options(self, kind: str) -> None:
        valid.flag("disable_fallback", self.disable_fallback)
        valid.flag("disable_any_whitespace", self.disable_any_whitespace)
        valid.flag("disable_additional_properties", self.disable_additional_properties)
        if self.whitespace_pattern is not None:
            valid.nonempty_text("whitespace_pattern", self.whitespace_pattern)
        for name in JSON_OPTIONS:
            if getattr(self, name) and kind not in ("json", "json_object"):
                raise InvalidRequestError(
                    f"{name} takes effect with json and json_object, not with {kind}", name
                )
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise InvalidRequestError(
                "whitespace_pattern is given with disable_any_whitespace; give one of them",
                "whitespace_pattern",
            )


def to_json(name: str, value: object) -> str:
    """Return a value as compact JSON. Raises InvalidRequestError if it has none."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name} can't be written as JSON: {error}", name) from error
