"""The part of a watched object that plan and status read. The rest would take most of the operator's memory."""

from collections.abc import Iterable
from typing import Any

from engine_server.contract.cluster import api
from llm_operator.kinds import CHILD_KINDS, DEPLOYMENTS, KINDS, LLMDEPLOYMENTS, Resource
from llm_operator.observed import Manifest

# Those whose objects are read with their kind.
NAMED = {LLMDEPLOYMENTS: (api.API_VERSION, api.KIND), **CHILD_KINDS}
# The fields of a spec that are kept, where not all are.
KEPT = {kind.resource: kind.kept for kind in KINDS if kind.kept is not None}
# Read by nobody, or, as the resource version, kept elsewhere.
DROPPED_METADATA = {"managedFields", "resourceVersion", "selfLink", "generateName"}
DROPPED_ANNOTATIONS = {"kubectl.kubernetes.io/last-applied-configuration"}


def trimmed(resource: Resource, manifest: Manifest) -> Manifest:
    """Return the kept part of an object; the same whether it comes from a list, a watch or a write."""
    # The items of a list have no apiVersion and kind, but for those of custom resources.
    kept = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    kept["metadata"] = trimmed_metadata(manifest["metadata"])
    if resource in NAMED:
        kept["apiVersion"], kept["kind"] = NAMED[resource]
    if resource == DEPLOYMENTS:
        kept["metadata"]["managedFields"] = managers_of_pods(manifest["metadata"])
    if resource in KEPT:
        kept["spec"] = fields(manifest.get("spec", {}), KEPT[resource])
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


def fields(given: Manifest, paths: Iterable[str]) -> Manifest:
    """Return the fields at these paths, as far as they are there, with all that they are in."""
    kept: Manifest = {}
    for path in paths:
        *outer, name = path.split(".")
        source, target = given, kept
        for part in outer:
            source, target = source.get(part, {}), target.setdefault(part, {})
        if name in source:
            target[name] = source[name]
    return kept
