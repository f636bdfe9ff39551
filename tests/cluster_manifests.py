"""Manifests of the end-to-end tests on a cluster."""

from typing import Any

Manifest = dict[str, Any]
# No registry listens there; a name that can't be resolved takes up to a minute to fail.
MISSING_IMAGE = "127.0.0.1:1/nothing:1"
# What the Pod Security Standard `restricted` asks of a container.
CONFINED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def llmdeployment(name: str, **spec: Any) -> Manifest:
    """Return an LLMDeployment of the small real model on the claim `models`."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "pvc://models/smollm2"}, **spec},
    }


def small_replicas(count: int) -> dict[str, Any]:
    """Return the fields of a spec that make `count` replicas fit the nodes of a test."""
    return {
        "engine": {"maxModelLen": 512},
        "resources": {"cpu": "100m", "memory": "3Gi"},
        "replicas": count,
    }


def idle_pod(name: str, image: str) -> Manifest:
    """Return a pod that does nothing, with the claim `models` at /models."""
    container = {
        "name": name,
        "image": image,
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": CONFINED,
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "volumes": [claim], "terminationGracePeriodSeconds": 0},
    }
