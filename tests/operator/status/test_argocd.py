"""Argo CD's health script in docs/gitops.md, run on statuses that the operator reports."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml
from llm_operator.api.spec import Autoscaling, LLMDeploymentSpec, Model
from llm_operator.observed import Observed, Problem, workload_key
from llm_operator.status.assess import assess

DOCUMENT = Path(__file__).parents[3] / "docs" / "gitops.md"
KEY = "resource.customizations.health.fairlead.dev_LLMDeployment"
METADATA = {"name": "smollm2", "namespace": "default", "generation": 3}
COMPLETE = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
CRASHED = {
    "metadata": {"name": "p"},
    "status": {
        "containerStatuses": [
            {"name": "engine", "ready": False, "state": {"terminated": {"exitCode": 1, "message": "bye"}}}
        ]
    },
}


def health(obj: dict[str, Any]) -> dict[str, str]:
    """Run the script as Argo CD does: the object is the global `obj`."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    script = next(yaml.safe_load(block)["data"][KEY] for block in blocks if KEY in block)
    lua = lupa.LuaRuntime()
    lua.globals().obj = lua.table_from(obj, recursive=True)
    return dict(lua.execute(script))


def reported(
    replicas: int = 1,
    *pods: dict[str, Any],
    status: dict[str, Any] | None = None,
    autoscaling: Autoscaling | None = None,
    refusal: Problem | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    spec = LLMDeploymentSpec(model=Model(uri="a/b"), replicas=replicas, autoscaling=autoscaling)
    workload = {"metadata": {"generation": 1}, "status": status or {}}
    subject = {"metadata": METADATA | {"annotations": annotations or {}}}
    observed = Observed(
        subject=subject,
        children={workload_key("smollm2"): workload},
        pods=pods,
        refusal=refusal,
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return {**subject, "status": assess(spec, observed).as_manifest()}


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"metadata": METADATA}, "Progressing"),
        (reported(), "Progressing"),
        (reported(status=COMPLETE), "Healthy"),
        (reported(2, status=COMPLETE), "Progressing"),
        (reported(0, status={"observedGeneration": 1}, autoscaling=Autoscaling(max=1)), "Healthy"),
        (reported(0, status={"observedGeneration": 1}), "Suspended"),
        (reported(status=COMPLETE, annotations={"fairlead.dev/paused": "true"}), "Suspended"),
        (reported(1, CRASHED), "Degraded"),
        (reported(2, CRASHED, status=COMPLETE), "Degraded"),
        (reported(status=COMPLETE, refusal=Problem("InvalidSpec", "spec.x: no")), "Degraded"),
    ],
    ids=[
        "not seen yet",
        "starting",
        "complete",
        "one of two ready",
        "scaled to zero",
        "stopped",
        "paused",
        "crashed",
        "one of two crashed",
        "invalid edit",
    ],
)
def test_argocd_shows_the_health_of(obj: dict[str, Any], expected: str) -> None:
    assert health(obj)["status"] == expected


def test_argocd_shows_an_edit_as_progressing_until_the_operator_has_seen_it() -> None:
    obj = reported(status=COMPLETE)
    edited = {**obj, "metadata": METADATA | {"generation": 4}}
    assert health(edited)["status"] == "Progressing"


def test_argocd_shows_the_reason_and_the_message() -> None:
    found = health(reported(refusal=Problem("InvalidSpec", "spec.x: no")))
    assert found["message"] == "InvalidSpec: spec.x: no"
