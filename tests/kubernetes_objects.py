"""Manifests of LLMDeployments and EndpointSlices."""

import json

from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL as LABEL
from engine_server.contract.cluster.labels import child_name


def llmd(name: str, *served: str, policy: str | None = None, spec: dict | None = None, **metadata) -> dict:
    spec = {"model": {"uri": "pvc://claim/path"}, **(spec or {})}
    if served:
        spec["model"]["servedNames"] = [*served]
    if policy:
        spec["routing"] = {"policy": policy}
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment"}
    return {**kind, "metadata": {"name": name, **metadata}, "spec": spec}


def endpoint(ip: str, pod: str | None = None, **conditions: bool) -> dict:
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [ip], "conditions": conditions, **target}


def slice_of(
    owner: str, name: str, *endpoints: dict, family: str = "IPv4", service: str | None = None, **metadata
) -> dict:
    labels = {LABEL: owner, "kubernetes.io/service-name": service or child_name(owner)}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels, **metadata},
        "addressType": family,
        "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}],
        "endpoints": [*endpoints],
    }


def nested_llmd(name: str, levels: int) -> bytes:
    """Return the JSON of an LLMDeployment whose podTemplate has so many levels, which Python does not encode."""
    template = '{"spec":{"x":' + '{"a":' * levels + "{}" + "}" * levels + "}}"
    manifest = llmd(name)
    manifest["spec"]["podTemplate"] = "NESTED"
    return json.dumps(manifest).replace('"NESTED"', template).encode()
