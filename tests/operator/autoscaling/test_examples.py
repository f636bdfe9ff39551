"""The examples of other autoscalers in the documentation, against the API server's and KEDA's own schemas."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_client import RefusedError
from waiting import until

ROOT = Path(__file__).parents[3]
# As KEDA's own chart installs it.
KEDA_CRD = ROOT.parent / "shared" / "cluster" / "crds" / "scaledobjects.yaml"


def example(kind: str) -> dict[str, Any]:
    """Return the example of a kind in docs/autoscaling.md."""
    text = (ROOT / "docs" / "autoscaling.md").read_text()
    blocks = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    return next(dict(block) for block in blocks if block.get("kind") == kind)


def test_the_api_server_accepts_the_horizontal_pod_autoscaler(world: Any) -> None:
    found = example("HorizontalPodAutoscaler")
    world.create(found, dryRun="All")


def test_kedas_schema_accepts_the_scaled_object(world: Any) -> None:
    if not KEDA_CRD.exists():
        pytest.skip(f"KEDA's definition is not there: {KEDA_CRD}")
    world.apply(*yaml.safe_load_all(KEDA_CRD.read_text()))
    found = example("ScaledObject")
    until(lambda: world.serves(found["apiVersion"], found["kind"]))
    world.create(found, dryRun="All")
    found["spec"]["maxReplicas"] = 8
    with pytest.raises(RefusedError, match="maxReplicas"):
        world.create(found, dryRun="All")


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
def test_examples_scale_an_llmdeployment_and_never_to_zero(kind: str) -> None:
    spec = example(kind)["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LLMDeployment"
    assert spec.get("minReplicas", spec.get("minReplicaCount")) == 1
