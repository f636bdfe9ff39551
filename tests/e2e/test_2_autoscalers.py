"""A HorizontalPodAutoscaler on metrics-server owns the replicas of a deployment without `spec.autoscaling`."""

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import openai
import pytest
import yaml
from cluster import ROOT
from cluster_preparation import SCRIPT

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
THREADS = 4


def documented_autoscaler(name: str) -> dict[str, Any]:
    """Return the example of the documentation for this deployment, which has two replicas and gets a third."""
    text = (ROOT / "docs" / "autoscaling.md").read_text()
    blocks = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    found = next(block for block in blocks if block.get("kind") == "HorizontalPodAutoscaler")
    found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = name
    found["spec"] |= {"minReplicas": 2, "maxReplicas": 3}
    # Of 500m: engines get that much even where other processes compete for the CPUs.
    found["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] = 10
    return dict(found)


@pytest.fixture
def metrics_server(cluster: Any) -> None:
    probe = ("kubectl", "get", "apiservice", "v1beta1.metrics.k8s.io")
    if cluster.run(*probe, check=False).returncode:
        if not SCRIPT.exists():
            pytest.skip("the cluster has no metrics-server")
        subprocess.run([SCRIPT, "metrics"], check=True, env=cluster.environment)


@pytest.fixture
def autoscaler(cluster: Any, metrics_server: None, smollm2: str) -> Iterator[str]:
    """Apply the HorizontalPodAutoscaler and return its name; delete it at the end."""
    cluster.apply(NAMESPACE, documented_autoscaler(smollm2))
    yield smollm2
    cluster.kubectl("delete", "hpa", smollm2, "-n", NAMESPACE)


def test_a_horizontal_pod_autoscaler_adds_a_replica_under_load(
    cluster: Any, smollm2: str, autoscaler: str, client: openai.OpenAI
) -> None:
    stopped = Event()

    def ask() -> None:
        while not stopped.is_set():
            client.completions.create(model=smollm2, prompt="The sea is", max_tokens=64)

    with ThreadPoolExecutor(THREADS) as pool:
        load = [pool.submit(ask) for _ in range(THREADS)]
        try:
            cluster.wait_replicas(smollm2, NAMESPACE, 3, 900)
        finally:
            stopped.set()
    for thread in load:
        thread.result()

    scaler = cluster.get("hpa", autoscaler, "-n", NAMESPACE)
    assert cluster.llmd(smollm2, NAMESPACE)["spec"]["replicas"] == scaler["status"]["desiredReplicas"] == 3
    cluster.show("a HorizontalPodAutoscaler", json.dumps(scaler["status"]["currentMetrics"]))
