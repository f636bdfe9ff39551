"""Translation of the request fields that constrain an answer to the engine's parameters."""

from collections.abc import Mapping
from typing import Any

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
RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def structured_outputs(
    response_format: object, structured: object, guided: Mapping[str, Any]
) -> StructuredOutputsParams | None:
    """Return the grammar that a request asks for, or None. Raises InvalidRequestError.

    response_format: OpenAI's field; structured: vLLM's structured_outputs; guided: the fields of `GUIDED`. At most one
    of the three may ask for a grammar.
    """
    older = {name: value for name, value in guided.items() if value is not None}
    found = {
        "response_format": _of_response_format(response_format),
        "structured_outputs": None if structured is None else _of_parameters(structured),
        next(iter(older), "guided_json"): _of_guided(older),
    }
    given = {name: value for name, value in found.items() if value is not None}
    if len(given) > 1:
        raise InvalidRequestError(
            f"{' and '.join(given)} are given; an answer has one format", list(given)[1]
        )
    return next(iter(given.values()), None)


def _of_response_format(value: object) -> StructuredOutputsParams | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in RESPONSE_FORMATS:
        raise InvalidRequestError(
            f"response_format has the type {str(kind)[:200]!r}; it takes an object with a type of "
            f"{', '.join(RESPONSE_FORMATS)}",
            "response_format",
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=to_json("response_format", value))
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError(
            "response_format needs json_schema, an object with a schema", "response_format.json_schema"
        )
    return StructuredOutputsParams(json=schema)


def _of_parameters(value: object) -> StructuredOutputsParams:
    """Return the parameters that a JSON object names."""
    if not isinstance(value, dict):
        raise InvalidRequestError("structured_outputs takes an object", "structured_outputs")
    given = {name: own for name, own in value.items() if own is not None}
    allowed = [name for name in StructuredOutputsParams.__struct_fields__ if name != "starts_after"]
    unknown = [name for name in given if name not in allowed]
    if unknown:
        raise InvalidRequestError(
            f"structured_outputs has {unknown[0][:200]!r}; it takes {', '.join(allowed)}",
            "structured_outputs",
        )
    if isinstance(given.get("structural_tag"), dict):
        given["structural_tag"] = to_json("structured_outputs", given["structural_tag"])
    return StructuredOutputsParams(**given)


def _of_guided(older: Mapping[str, Any]) -> StructuredOutputsParams | None:
    if not older:
        return None
    return StructuredOutputsParams(**{GUIDED[name]: value for name, value in older.items()})
