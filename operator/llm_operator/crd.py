"""The CustomResourceDefinition, generated from the typed spec and status."""

import dataclasses
from typing import Any, cast

import yaml

from llm_operator import names
from llm_operator.schema import (
    Accepts,
    Attribute,
    Quantity,
    Rule,
    attributes,
    is_free_form,
    item_kind,
    object_rules,
)
from llm_operator.spec import NAME_RULE, LLMDeploymentSpec
from llm_operator.status import Status

Schema = dict[str, Any]


def crd() -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["fairlead"],
            },
            "versions": [version()],
        },
    }


def version() -> Schema:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            column("Model", ".spec.model.uri"),
            column("Replicas", ".spec.replicas", "integer"),
            column("Ready", ".status.readyReplicas", "integer"),
            column("Status", '.status.conditions[?(@.type=="Ready")].reason'),
            column("Age", ".metadata.creationTimestamp", "date"),
            column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
        ],
        "schema": {"openAPIV3Schema": root_schema()},
    }


def column(name: str, path: str, kind: str = "string", priority: int = 0) -> Schema:
    listed: Schema = {"name": name, "type": kind, "jsonPath": path}
    return listed | {"priority": priority} if priority else listed


def root_schema() -> Schema:
    return {
        "type": "object",
        "description": "A large language model, served by engine replicas behind the router.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": object_schema(LLMDeploymentSpec),
            "status": object_schema(Status),
        },
        "x-kubernetes-validations": [
            {"rule": NAME_RULE.cel, "message": f"metadata.name must be {NAME_RULE.message}"}
        ],
    }


def object_schema(cls: type) -> Schema:
    fields = attributes(cls)
    schema: Schema = {"type": "object"}
    required = [attribute.spelling for attribute in fields if attribute.required]
    if required:
        schema["required"] = required
    schema["properties"] = {attribute.spelling: field_schema(attribute) for attribute in fields}
    return schema | validations(object_rules(cls))


def field_schema(attribute: Attribute) -> Schema:
    limits = attribute.accepts
    schema = {"description": limits.about} | value_schema(attribute.kind, limits)
    if limits.persisted_default:
        schema["default"] = attribute.default
    return schema


def value_schema(kind: Any, limits: Accepts) -> Schema:
    schema: Schema
    inner = item_kind(kind)
    if inner is not None:
        schema = {"type": "array", "items": value_schema(inner, limits.items or Accepts())}
        if limits.list_type is not None:
            schema["x-kubernetes-list-type"] = limits.list_type
        if limits.list_type == "map":
            schema["x-kubernetes-list-map-keys"] = [limits.list_key]
    elif dataclasses.is_dataclass(kind):
        schema = object_schema(cast(type, kind))
    elif is_free_form(kind):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    elif kind is Quantity:
        alternatives = [{"type": "integer"}, {"type": "string"}]
        schema = {"anyOf": alternatives, "minimum": 0, "x-kubernetes-int-or-string": True}
    elif kind is int:
        schema = {"type": "integer", "format": "int32"}
    else:
        schema = {"type": "string"}
    return schema | bounds(limits) | validations(limits.rules)


def bounds(limits: Accepts) -> Schema:
    named = {
        "minimum": limits.minimum,
        "maximum": limits.maximum,
        "pattern": limits.pattern,
        "enum": list(limits.choices) or None,
        "format": limits.format,
        "minLength": limits.min_length,
        "maxLength": limits.max_length,
        "maxItems": limits.max_items,
    }
    return {key: value for key, value in named.items() if value is not None}


def validations(rules: tuple[Rule, ...]) -> Schema:
    if not rules:
        return {}
    return {"x-kubernetes-validations": [{"rule": rule.cel, "message": rule.message} for rule in rules]}


if __name__ == "__main__":
    print(yaml.safe_dump(crd(), sort_keys=False, width=110), end="")
