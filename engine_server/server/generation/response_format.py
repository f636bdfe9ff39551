"""Translation of the request fields that constrain an answer to the engine's parameters."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.structured_outputs import StructuredOutputsParams, to_json

# vLLM's older fields, by the parameter that each one sets.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}
FIELDS = ("response_format", "structured_outputs", *GUIDED)
# The parameters that the server sets itself.
INTERNAL = ("form", "starts_after")
RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


class RequestedGrammar(NamedTuple):
    """The grammar that a request asks for, and the field that does."""

    field: str
    params: StructuredOutputsParams


def requested_grammar(fields: Mapping[str, Any]) -> RequestedGrammar | None:
    """Return the grammar that a request asks for, if any. Raises InvalidRequestError.

    fields: those of `FIELDS` that the request has.
    """
    guided = {name: fields[name] for name in GUIDED if fields.get(name) is not None}
    found = {
        "response_format": _of_response_format(fields.get("response_format")),
        "structured_outputs": _of_parameters(fields.get("structured_outputs")),
        next(iter(guided), "guided_json"): _of_guided(guided),
    }
    given = [RequestedGrammar(name, params) for name, params in found.items() if params is not None]
    if len(given) > 1:
        names = " and ".join(one.field for one in given)
        raise InvalidRequestError(f"{names} are given; an answer has one format", given[1].field)
    return given[0] if given else None


def _of_response_format(value: object) -> StructuredOutputsParams | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in RESPONSE_FORMATS:
        raise InvalidRequestError(
            f"response_format has the type {quote(kind)}; it takes an object with a type of "
            f"{', '.join(RESPONSE_FORMATS)}",
            "response_format",
        )
    if kind == "text":
        return None
    if kind == "json_object" and isinstance(value.get("schema"), dict):  # llama.cpp's form of a schema
        return _grammar("response_format", json=value["schema"])
    if kind == "json_object":
        return _grammar("response_format", json_object=True)
    if kind == "structural_tag":
        return _grammar("response_format", structural_tag=to_json("response_format", value))
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError(
            "response_format needs json_schema, an object with a schema", "response_format.json_schema"
        )
    return _grammar("response_format", json=schema)


def _of_parameters(value: object) -> StructuredOutputsParams | None:
    """Return the parameters that a JSON object names."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequestError("structured_outputs takes an object", "structured_outputs")
    given = {name: own for name, own in value.items() if own is not None}
    allowed = [name for name in StructuredOutputsParams.__struct_fields__ if name not in INTERNAL]
    unknown = [name for name in given if name not in allowed]
    if unknown:
        raise InvalidRequestError(
            f"structured_outputs has {quote(unknown[0])}; it takes {', '.join(allowed)}",
            "structured_outputs",
        )
    if isinstance(given.get("structural_tag"), dict):
        given["structural_tag"] = to_json("structured_outputs", given["structural_tag"])
    return _grammar("structured_outputs", **given)


def _of_guided(older: Mapping[str, Any]) -> StructuredOutputsParams | None:
    if not older:
        return None
    if set(older) == {"guided_whitespace_pattern"}:
        raise InvalidRequestError(
            "guided_whitespace_pattern takes effect with guided_json", "guided_whitespace_pattern"
        )
    return _grammar(next(iter(older)), **{GUIDED[name]: value for name, value in older.items()})


def _grammar(field: str, **parameters: Any) -> StructuredOutputsParams:
    """Make the parameters; an error names the client's field."""
    try:
        return StructuredOutputsParams(**parameters)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{field}: {error}", field) from None
