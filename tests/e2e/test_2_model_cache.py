"""Two deployments share one download, whose pod is killed half-way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from cluster_manifests import CONFINED
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-b"
HUB = Path(__file__).with_name("hub.py")
ONE, OTHER = "cached-one", "cached-other"
FETCH_PODS = "fairlead.dev/model-cache"
ADDRESS = f"http://hub.{NAMESPACE}"
# Of a download into a cache, only a profile chooses the hub.
PROFILE = "profiles.hub.podTemplate.spec.initContainers[0]"
MIRROR = (f"{PROFILE}.name=model", f"{PROFILE}.env[0].name=HF_ENDPOINT", f"{PROFILE}.env[0].value={ADDRESS}")


@pytest.fixture
def hub(cluster: Any, release: None, helm: Any) -> Iterator[None]:
    """Run a hub in the cluster, which the profile `hub` has the downloads ask."""
    helm("upgrade", *MIRROR)
    labels = {"app": "hub"}
    container = {
        "name": "hub",
        "image": cluster.image,
        "command": ["python", "/script/hub.py"],
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "models", "mountPath": "/models", "readOnly": True},
            {"name": "script", "mountPath": "/script"},
        ],
    }
    volumes = [
        {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
        {"name": "script", "configMap": {"name": "hub"}},
    ]
    manifests = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hub"},
            "data": {"hub.py": HUB.read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hub", "labels": labels},
            "spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    ]
    cluster.apply(NAMESPACE, *manifests)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/hub", "-n", NAMESPACE, "--timeout=120s")
    yield
    cluster.kubectl("delete", "configmap/hub", "service/hub", "pod/hub", "-n", NAMESPACE)


def cached(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "hf://org/smollm2", "cache": {"size": "1Gi"}},
            "profile": "hub",
            "engine": {"maxModelLen": 512},
            "resources": {"cpu": "100m", "memory": "2Gi"},
        },
    }


@pytest.fixture
def claims(cluster: Any, hub: None) -> Iterator[set[str]]:
    """Return the claims that exist without the deployments of the test; delete those at the end."""
    before = set(cluster.names("pvc", NAMESPACE))
    yield before
    cluster.kubectl("delete", "llmd", ONE, OTHER, "-n", NAMESPACE, "--ignore-not-found")
    until(lambda: set(cluster.names("pvc", NAMESPACE)) == before, "the claim is deleted")


def fetch_pods(cluster: Any) -> list[str]:
    return list(cluster.names("pods", NAMESPACE, FETCH_PODS))


def test_two_deployments_share_one_download_that_was_killed_half_way(
    cluster: Any, claims: set[str], client: openai.OpenAI
) -> None:
    for name in (ONE, OTHER):
        cluster.apply(NAMESPACE, cached(name))

    def percent() -> str:
        message: str = cluster.condition(ONE, NAMESPACE, "ModelCached").get("message", "")
        return message if "MB of" in message and not message.startswith("0 %") else ""

    cluster.show("kubectl get llmd during the download", until(percent, cluster.describe(NAMESPACE)))
    assert not cluster.pods(ONE, NAMESPACE) and not cluster.pods(OTHER, NAMESPACE)
    (killed,) = fetch_pods(cluster)
    cluster.kubectl("delete", killed, "-n", NAMESPACE, "--force", "--grace-period=0")

    for name in (ONE, OTHER):
        cluster.wait_ready(name, NAMESPACE, 300)
        assert cluster.condition(name, NAMESPACE, "ModelCached")["status"] == "True"
    sent = cluster.kubectl("logs", "hub", "-n", NAMESPACE).splitlines()
    assert sorted(sent) == sorted(set(sent)), "a file was downloaded twice"
    assert "sent model.safetensors" in sent
    assert len(set(cluster.names("pvc", NAMESPACE)) - claims) == 1
    until(lambda: not fetch_pods(cluster), "the finished pod is deleted")
    for name in (ONE, OTHER):
        answer = client.completions.create(
            model=f"{NAMESPACE}/{name}", prompt="The capital of France is", max_tokens=4
        )
        assert answer.choices[0].text

    cluster.kubectl("delete", "llmd", ONE, "-n", NAMESPACE)
    until(lambda: not cluster.pods(ONE, NAMESPACE))
    assert len(set(cluster.names("pvc", NAMESPACE)) - claims) == 1
    cluster.wait_ready(OTHER, NAMESPACE)
    cluster.kubectl("delete", "llmd", OTHER, "-n", NAMESPACE)
    until(lambda: set(cluster.names("pvc", NAMESPACE)) == claims, "the claim is deleted with its last owner")
