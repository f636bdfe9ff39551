"""The examples of other autoscalers in the documentation, against the API server's and KEDA's own schemas."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
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
    world.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=found)


def test_kedas_schema_accepts_the_scaled_object(world: Any) -> None:
    if not KEDA_CRD.exists():
        pytest.skip(f"KEDA's definition is not there: {KEDA_CRD}")
    world.kubectl("apply", "--server-side", "-f", str(KEDA_CRD))
    world.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh")
    strictly = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    found = example("ScaledObject")
    until(lambda: world.kubectl(*strictly, stdin=found))
    found["spec"]["maxReplicas"] = 8
    assert "maxReplicas" in world.refused(*strictly, stdin=found)


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
def test_examples_scale_an_llmdeployment_and_never_to_zero(kind: str) -> None:
    spec = example(kind)["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LLMDeployment"
    assert spec.get("minReplicas", spec.get("minReplicaCount")) == 1
