"""A HorizontalPodAutoscaler on metrics-server owns the replicas of a deployment without `spec.autoscaling`."""

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest
import yaml

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT.parent / "shared" / "cluster" / "cluster"
NAMESPACE = "team-a"
NAME = "measured"
THREADS = 4


def documented_autoscaler() -> dict[str, Any]:
    """Return the example of the documentation for this deployment."""
    text = (ROOT / "docs" / "autoscaling.md").read_text()
    blocks = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    found = next(block for block in blocks if block.get("kind") == "HorizontalPodAutoscaler")
    found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = NAME
    found["spec"]["maxReplicas"] = 2
    return dict(found)


@pytest.fixture
def metrics_server(cluster: Any) -> None:
    probe = ("kubectl", "get", "apiservice", "v1beta1.metrics.k8s.io")
    if cluster.run(*probe, check=False).returncode:
        if not SCRIPT.exists():
            pytest.skip("the cluster has no metrics-server")
        subprocess.run([SCRIPT, "metrics"], check=True, env=cluster.environment)


@pytest.fixture
def measured(cluster: Any, release: None) -> Iterator[None]:
    """Apply a deployment without `autoscaling`, and the HorizontalPodAutoscaler; delete both at the end."""
    spec = {
        "model": {"uri": "pvc://models/smollm2"},
        "engine": {"maxModelLen": 512, "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
        "resources": {"cpu": "100m", "memory": "2Gi"},
    }
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment"}
    items = [{**kind, "metadata": {"name": NAME}, "spec": spec}, documented_autoscaler()]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=listed)
    yield
    cluster.kubectl("delete", "-n", NAMESPACE, "-f", "-", input=listed)


def test_a_horizontal_pod_autoscaler_adds_replicas_under_load(
    cluster: Any, metrics_server: None, measured: None, client: openai.OpenAI
) -> None:
    patient, stopped = client.with_options(timeout=600.0), Event()
    cluster.wait_replicas(NAME, NAMESPACE, 1, 600)

    def ask() -> None:
        while not stopped.is_set():
            patient.completions.create(model=NAME, prompt="The sea is", max_tokens=64)

    with ThreadPoolExecutor(THREADS) as pool:
        load = [pool.submit(ask) for _ in range(THREADS)]
        try:
            cluster.wait_replicas(NAME, NAMESPACE, 2, 900)
        finally:
            stopped.set()
    for thread in load:
        thread.result()

    scaler = cluster.get("hpa", NAME, "-n", NAMESPACE)
    scaled = cluster.get("llmd", NAME, "-n", NAMESPACE)["spec"]["replicas"]
    assert scaled == scaler["status"]["desiredReplicas"] == 2
    cluster.show("a HorizontalPodAutoscaler", json.dumps(scaler["status"]["currentMetrics"]))
