"""The CustomResourceDefinition, generated from the typed spec and status."""

from typing import get_args

import msgspec
import yaml

from engine_server.contract.cluster import api
from llm_operator.api.rules import OBJECT_RULES
from llm_operator.api.schema import NOT_IN_PODS, validations, without_none
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Status
from llm_operator.api.structural import Schema, structural
from llm_operator.status.conditions import explanation

READY = '.status.conditions[?(@.type=="Ready")]'
# The columns of `kubectl get`; those with a priority are shown with -o wide.
COLUMNS = (
    {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"},
    {"name": "Status", "type": "string", "jsonPath": f"{READY}.reason"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Image", "type": "string", "jsonPath": ".status.image", "priority": 1},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts", "priority": 1},
    {"name": "Message", "type": "string", "jsonPath": f"{READY}.message", "priority": 1},
)
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}

# Without it, kstatus takes an object that the operator has not seen yet as complete, and `helm --wait` ends.
UNOBSERVED = {"observedGeneration": -1}


def crd() -> Schema:
    """Return the manifest of the CustomResourceDefinition."""
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
    """Return the schema of an LLMDeployment."""
    spec: Schema = {"description": "The wanted state: which model, on which resources, by how many replicas."}
    spec |= structural(LLMDeploymentSpec)
    describe_changes(LLMDeploymentSpec, spec)
    status = structural(Status)
    condition = status["properties"]["conditions"]["items"]["properties"]
    condition["type"]["description"] = explanation()
    # The only default of a spec, since defaults persist in etcd: the scale subresource needs the field.
    spec["properties"]["replicas"]["default"] = 1
    return {
        "type": "object",
        "description": "A large language model, served by engine replicas behind the router.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {
                "description": "The observed state, and its reasons.",
                **status,
                "default": UNOBSERVED,
            },
        },
    } | validations(OBJECT_RULES)


def describe_changes(section: type[msgspec.Struct], schema: Schema, is_in_pods: bool = True) -> None:
    """Add to the description of each field if a change of it replaces the replicas."""
    for field in msgspec.structs.fields(section):
        described = schema["properties"][field.encode_name]
        rolls = is_in_pods and NOT_IN_PODS not in get_args(field.type)
        kind = without_none(field.type)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            describe_changes(kind, described, rolls)
        else:
            described["description"] += f" A change replaces {'the replicas' if rolls else 'no replica'}."


class Dumper(yaml.SafeDumper):
    """Writes what is equal in full each time."""

    def ignore_aliases(self, _: object) -> bool:
        return True


if __name__ == "__main__":
    print(yaml.dump(crd(), Dumper=Dumper, sort_keys=False, width=110), end="")
