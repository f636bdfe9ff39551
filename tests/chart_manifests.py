"""Manifests that the chart renders: values that set everything, and short ways to objects."""

from collections.abc import Iterator
from typing import Any

import yaml

Manifest = dict[str, Any]
# The parser in C, where there is one.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# What must be set, for helm's own command line too.
IMAGE = "registry.example/fairlead"
SET_IMAGE = f"--set=image.repository={IMAGE}"
DIGEST = "sha256:" + "0f" * 32
EVERY_VALUE: dict[str, Any] = {
    "image": {"repository": IMAGE, "digest": DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "commonLabels": {"cost-center": "ml"},
    "watchNamespaces": ["team-a", "team-b"],
    "engine": {"image": "registry.example/engine:2", "imagePullSecrets": [{"name": "engines"}]},
    "keys": {"enabled": True, "routerSecret": "router-root", "adminSecret": "admin-root"},
    "servedNameOrganizations": ["openai"],
    "admissionPolicy": {"enabled": True, "serviceAccounts": ["shared"]},
    "podPolicy": {
        "nodeName": False,
        "images": ["registry.example/*"],
        "requiredProfiles": {"team-a": ["gpu-l4"]},
    },
    "profiles": {"gpu-l4": {"resources": {"gpu": 1}, "podTemplate": {"spec": {"priorityClassName": "high"}}}},
    "operator": {
        "args": ["--log-level=debug"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "ml"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "priorityClassName": "system-cluster-critical",
        "serviceAccount": {"annotations": {"role": "x"}},
    },
    "router": {
        "replicas": 3,
        "policy": "session",
        "prefixChars": 200,
        "hold": {"requests": 10, "seconds": 60, "whenFull": True},
        "autoscaling": {"enabled": True, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}},
        "service": {
            "type": "LoadBalancer",
            "port": 8080,
            "nodePort": 30080,
            "annotations": {"a": "b"},
            "labels": {"a": "b"},
            "ipFamilyPolicy": "SingleStack",
            "ipFamilies": ["IPv4"],
            "internalTrafficPolicy": "Local",
            "loadBalancerClass": "example.com/lb",
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "externalTrafficPolicy": "Local",
        },
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"a": "b"},
            "hosts": ["models.example.com"],
            "tls": [{"secretName": "models-tls", "hosts": ["models.example.com"]}],
        },
        "httpRoute": {
            "enabled": True,
            "annotations": {"a": "b"},
            "parentRefs": [{"name": "gateway", "namespace": "gateways"}],
            "hostnames": ["models.example.com"],
        },
        "podDisruptionBudget": {"enabled": False},
        "keysSecret": {"name": "callers", "key": "callers.yaml"},
        "requireInternalKey": True,
        "forwardHeaders": ["x-team-*"],
        "resources": {"limits": {"cpu": 1}},
    },
    "podMonitors": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"},
    "prometheusRules": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Fairlead"}},
    "networkPolicies": {"enabled": True, "allowFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    "test": {"model": "smollm2", "apiKeySecret": {"name": "caller"}},
}


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name)


def kinds(manifests: list[Manifest]) -> set[str]:
    return {manifest["kind"] for manifest in manifests}


def names(manifests: list[Manifest], kind: str) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == kind}


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    yield from (m["spec"]["template"]["spec"] for m in manifests if m["kind"] == "Deployment")


def arguments(manifests: list[Manifest], component: str) -> list[str]:
    pod = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["template"]["spec"]
    return list(pod["containers"][0]["args"])


def pod_of(manifests: list[Manifest], component: str) -> Manifest:
    """Return the pod template of a component."""
    template: Manifest = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["template"]
    return template
