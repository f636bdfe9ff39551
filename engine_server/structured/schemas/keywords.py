"""The keywords of JSON schemas, and what becomes of each in a grammar."""

from enum import Enum, auto
from typing import NamedTuple


class Treatment(Enum):
    """What becomes of a keyword."""

    ENFORCED = auto()
    # Left out, and named to the client.
    RELAXED = auto()
    # Says nothing about values; left out.
    ANNOTATION = auto()


class Kind(Enum):
    """The value of a keyword."""

    ANY = auto()
    # A whole number of at least 0.
    COUNT = auto()
    NUMBER = auto()
    TEXT = auto()
    SCHEMA = auto()
    # An array with at least one schema.
    SCHEMAS = auto()
    # An object with schemas as its values.
    NAMED_SCHEMAS = auto()


class Keyword(NamedTuple):
    treatment: Treatment
    kind: Kind = Kind.ANY


def keywords(treatment: Treatment, kind: Kind, names: str) -> dict[str, Keyword]:
    return dict.fromkeys(names.split(), Keyword(treatment, kind))


# Keywords that are not listed are annotations, as JSON Schema has it. What is enforced was run with llguidance 1.9.1.
# Some are enforced in part: `pattern` and the bounds of strings within limits (patterns.py, bounds.py), `oneOf` where
# its branches exclude each other, `minProperties` and `maxProperties` where each listed property is required.
# References are refused if they lead out of the document, and a schema that no value matches is refused as a whole.
KEYWORDS = {
    **keywords(
        Treatment.ENFORCED,
        Kind.ANY,
        "type nullable enum const required items exclusiveMinimum exclusiveMaximum",
    ),
    **keywords(Treatment.ENFORCED, Kind.TEXT, "$ref pattern format"),
    **keywords(Treatment.ENFORCED, Kind.NUMBER, "minimum maximum multipleOf"),
    **keywords(Treatment.ENFORCED, Kind.COUNT, "minLength maxLength minItems maxItems minProperties maxProperties"),
    **keywords(Treatment.ENFORCED, Kind.SCHEMA, "additionalProperties additionalItems"),
    **keywords(Treatment.ENFORCED, Kind.SCHEMAS, "prefixItems anyOf oneOf allOf"),
    **keywords(Treatment.ENFORCED, Kind.NAMED_SCHEMAS, "properties patternProperties"),
    **keywords(
        Treatment.RELAXED,
        Kind.ANY,
        "not if dependentSchemas dependentRequired dependencies contains uniqueItems propertyNames "
        "unevaluatedProperties unevaluatedItems $dynamicRef $recursiveRef",
    ),
}  # fmt: skip

# Values of relaxed keywords with which they allow everything, and so are left out in silence.
NO_EFFECT: dict[str, tuple[object, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentSchemas": ({},),
    "dependentRequired": ({},),
    "dependencies": ({},),
}

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Formats of strings that are enforced; JSON Schema takes others as annotations.
FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"
})  # fmt: skip
