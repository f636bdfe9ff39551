"""The part of a watched object that plan and status read. The rest would take most of the operator's memory."""

from typing import Any

from engine_server.contract.cluster import api
from llm_operator.control.resources import (
    CHILD_KINDS,
    DEPLOYMENTS,
    LLMDEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    Resource,
)
from llm_operator.observed import Manifest

KINDS = {LLMDEPLOYMENTS: (api.API_VERSION, api.KIND), **CHILD_KINDS}
# Read by nobody, or, as the resource version, kept elsewhere.
DROPPED_METADATA = {"managedFields", "resourceVersion", "selfLink", "generateName"}
DROPPED_ANNOTATIONS = {"kubectl.kubernetes.io/last-applied-configuration"}
# Fields of a spec that are kept. The Deployment has the template; of a ReplicaSet's only the volumes are read.
POD_SPEC = {"nodeName", "priority"}
REPLICA_SET_SPEC = {"replicas"}
MOUNTED = {"volumes"}


def trimmed(resource: Resource, manifest: Manifest) -> Manifest:
    """Return the kept part of an object; the same whether it comes from a list, a watch or a write."""
    # The items of a list have no apiVersion and kind, but for those of custom resources.
    kept = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    kept["metadata"] = trimmed_metadata(manifest["metadata"])
    if resource in KINDS:
        kept["apiVersion"], kept["kind"] = KINDS[resource]
    if resource == DEPLOYMENTS:
        kept["metadata"]["managedFields"] = managers_of_pods(manifest["metadata"])
    if resource == PODS:
        kept["spec"] = subset(manifest.get("spec", {}), POD_SPEC)
    if resource == REPLICA_SETS:
        spec = manifest.get("spec", {})
        volumes = subset(spec.get("template", {}).get("spec", {}), MOUNTED)
        kept["spec"] = subset(spec, REPLICA_SET_SPEC) | {"template": {"spec": volumes}}
    return kept


def trimmed_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key not in DROPPED_METADATA}
    if annotations := kept.get("annotations"):
        kept["annotations"] = {
            key: value for key, value in annotations.items() if key not in DROPPED_ANNOTATIONS
        }
    return kept


def managers_of_pods(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return who has set fields in the spec of a Deployment's pods, without times and the fields themselves."""
    managers = {
        entry["manager"]
        for entry in metadata.get("managedFields", ())
        if "f:spec" in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:template", {})
    }
    fields: dict[str, Any] = {"f:spec": {"f:template": {"f:spec": {}}}}
    return [{"manager": manager, "fieldsV1": fields} for manager in sorted(managers)]


def subset(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in names}
