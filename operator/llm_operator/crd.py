"""The CustomResourceDefinition, generated from the typed spec and status."""

from typing import Any

import msgspec
import yaml

from engine_server.contract import api
from llm_operator.schema import Section, ruled
from llm_operator.spec import NAME_RULE, LLMDeploymentSpec
from llm_operator.status import Status

NOT_STRUCTURAL = ("title", "default", "additionalProperties")
READY = '.status.conditions[?(@.type=="Ready")]'
COLUMNS = (
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "Status", "type": "string", "jsonPath": f"{READY}.reason"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Message", "type": "string", "jsonPath": f"{READY}.message", "priority": 1},  # -o wide
)
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
Schema = dict[str, Any]


def crd() -> Schema:
    version = {
        "name": api.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": SCALE},
        "additionalPrinterColumns": list(COLUMNS),
        "schema": {"openAPIV3Schema": root_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": api.CRD_NAME},
        "spec": {
            "group": api.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": api.KIND,
                "listKind": f"{api.KIND}List",
                "plural": api.PLURAL,
                "singular": api.KIND.lower(),
                "shortNames": [api.SHORT_NAME],
                "categories": ["fairlead"],
            },
            "versions": [version],
        },
    }


def root_schema() -> Schema:
    spec = structural(LLMDeploymentSpec)
    spec["properties"]["replicas"]["default"] = 1  # the one that etcd keeps: scaling needs the field
    return {
        "type": "object",
        "description": "A large language model, served by engine replicas behind the router.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": structural(Status),
        },
    } | ruled(NAME_RULE)


def structural(section: type[Section]) -> Schema:
    """msgspec's JSON schema as Kubernetes wants it: without references, nulls and titles."""
    (schema,), definitions = msgspec.json.schema_components([section])
    return inlined(schema, definitions)


def inlined(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    own = dict(schema)
    arms = [arm for arm in own.pop("anyOf", []) if arm != {"type": "null"}]
    if "$ref" in own:
        own = definitions[own.pop("$ref").removeprefix("#/$defs/")] | own
    if len(arms) == 1:
        own = inlined(arms[0], definitions) | own
    elif arms:  # an integer or a string
        bounds = {key: value for arm in arms for key, value in arm.items() if key != "type"}
        own |= {"anyOf": [{"type": arm["type"]} for arm in arms]} | bounds
    if "enum" in own:
        own["type"] = "string"
    if "properties" in own:
        own["properties"] = {name: inlined(field, definitions) for name, field in own["properties"].items()}
    elif own.get("type") == "object":
        own["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in own:
        own["items"] = inlined(own["items"], definitions)
    return {key: own[key] for key in own if key not in NOT_STRUCTURAL and own[key] != []}


if __name__ == "__main__":
    print(yaml.safe_dump(crd(), sort_keys=False, width=110), end="")
