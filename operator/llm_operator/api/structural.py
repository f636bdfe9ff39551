"""JSON schemas in the structural form of Kubernetes, generated from the API's types."""

from typing import Any

import msgspec

NOT_STRUCTURAL = ("title", "default")
# Keeps the fields that a schema does not describe.
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
Schema = dict[str, Any]


def structural(section: type[msgspec.Struct]) -> Schema:
    """Return msgspec's JSON schema in the structural form of Kubernetes: without references, nulls and titles."""
    (schema,), definitions = msgspec.json.schema_components([section])
    return inlined(schema, definitions)


def inlined(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace the references in `schema` by their definitions, and keywords that structural schemas lack."""
    own = dict(schema)
    arms = [arm for arm in own.pop("anyOf", []) if arm != {"type": "null"}]
    if "$ref" in own:
        own = definitions[own.pop("$ref").removeprefix("#/$defs/")] | own
    if len(arms) == 1:
        # A field that has a type beside its arms was given a schema in full.
        own = own if "type" in own else inlined(arms[0], definitions) | own
    elif arms:
        # An integer or a string: the bounds of either arm apply to values of its type alone.
        bounds = {key: value for arm in arms for key, value in arm.items() if key != "type"}
        own |= {"anyOf": [{"type": arm["type"]} for arm in arms]} | bounds
    elif own.get("type") == "object":
        own |= fields(own, definitions)
    elif "enum" in own:
        own["type"] = "string"
    elif "items" in own:
        own["items"] = inlined(own["items"], definitions)
    dropped = [key for key in own if key in NOT_STRUCTURAL or own[key] == [] or own[key] is False]
    return {key: own[key] for key in own if key not in dropped}


def fields(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return the part of an object's schema that describes its fields; those without a description are kept."""
    others = schema.get("additionalProperties", True)
    if isinstance(others, dict) and others:
        return {"additionalProperties": inlined(others, definitions)}
    named = schema.get("properties", {})
    described = {"properties": {name: inlined(field, definitions) for name, field in named.items()}}
    return (described if named else {}) | ({} if others is False else OPEN)
