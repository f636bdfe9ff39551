"""The verdicts of GitOps tools on the operator's statuses: kstatus's, and of Argo CD's script in docs/operations.md."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml
from llm_operator.api.sections.cache import Cache
from llm_operator.api.spec import Autoscaling, LLMDeploymentSpec, Model
from llm_operator.observed import Fetch, Observed, Problem, workload_key
from llm_operator.status.assess import assess

DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"
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


def kstatus(obj: dict[str, Any]) -> str:
    """Return kstatus's verdict on a custom resource, by which Flux and Helm 4 wait."""
    status = obj.get("status", {})
    if status.get("observedGeneration", obj["metadata"]["generation"]) != obj["metadata"]["generation"]:
        return "InProgress"
    conditions = status.get("conditions", ())
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if condition["type"] == "Reconciling" else "Failed"
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "True")
    return "Current" if ready == "True" else "InProgress"


def reported(
    replicas: int = 1,
    *pods: dict[str, Any],
    status: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    replica_sets: tuple[dict[str, Any], ...] = (),
    autoscaling: Autoscaling | None = None,
    model: Model | None = None,
    fetch: Fetch | None = None,
    refusal: Problem | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    spec = LLMDeploymentSpec(model=model or Model(uri="a/b"), replicas=replicas, autoscaling=autoscaling)
    workload = workload or {"metadata": {"generation": 1}, "status": status or {}}
    subject = {"metadata": METADATA | {"annotations": annotations or {}}}
    observed = Observed(
        subject=subject,
        children={workload_key("smollm2"): workload},
        pods=pods,
        replica_sets=replica_sets,
        fetch=fetch,
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


FORMER, PRESENT = "the former template", "the present template"
SCALED_TO_ZERO = Autoscaling(max=1)
CACHED = Model(uri="hf://a/b", cache=Cache(size="1Gi"))
CRASHED_AGAIN = {
    "metadata": {"name": "p", "ownerReferences": [{"uid": PRESENT}]},
    "status": {
        "containerStatuses": [
            {
                "name": "engine",
                "ready": False,
                "restartCount": 4,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "wrong flag"}},
            }
        ]
    },
}


def deployment(
    progress: str | None,
    replicas: int,
    updated: int,
    ready: int,
    *,
    template: str = PRESENT,
    is_counted: bool = True,
) -> dict[str, Any]:
    """Return a Deployment with the reason of its condition Progressing."""
    conditions = [{"type": "Progressing", "status": "Unknown", "reason": progress}] if progress else []
    return {
        "metadata": {"generation": 2, "annotations": {"fairlead.dev/pod-template": template}},
        "status": {
            "observedGeneration": 2 if is_counted else 1,
            "replicas": replicas,
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "conditions": conditions,
        },
    }


def replica_set(template: str, revision: int, replicas: int) -> dict[str, Any]:
    annotations = {
        "fairlead.dev/pod-template": template,
        "deployment.kubernetes.io/revision": str(revision),
    }
    return {"metadata": {"uid": template, "annotations": annotations}, "spec": {"replicas": replicas}}


COMPLETED, UPDATED, LATE = "NewReplicaSetAvailable", "ReplicaSetUpdated", "ProgressDeadlineExceeded"
ROLLED_OUT = (replica_set(PRESENT, 10, 2), replica_set(FORMER, 9, 0))
BETWEEN = (replica_set(PRESENT, 10, 1), replica_set(FORMER, 9, 2))
STATES: dict[str, tuple[dict[str, Any], str | None, str, str]] = {
    "no Deployment yet": (reported(workload={"metadata": {}}), "Reconciling", "InProgress", "Progressing"),
    "first start": (
        reported(workload=deployment(UPDATED, 1, 1, 0), replica_sets=(replica_set(PRESENT, 1, 1),)),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "first download": (
        reported(workload={"metadata": {}}, model=CACHED, fetch=Fetch()),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "download while the former model answers": (
        reported(
            2, workload=deployment(COMPLETED, 2, 2, 2), replica_sets=ROLLED_OUT, model=CACHED, fetch=Fetch()
        ),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "rollout that the Deployment has not seen": (
        reported(
            2,
            workload=deployment(COMPLETED, 2, 2, 2, is_counted=False),
            replica_sets=(replica_set(FORMER, 9, 2),),
        ),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "rollout that is not counted": (
        reported(2, workload=deployment(COMPLETED, 2, 2, 2, is_counted=False), replica_sets=BETWEEN),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "rollout": (
        reported(2, workload=deployment(UPDATED, 3, 1, 2), replica_sets=BETWEEN),
        *("Reconciling", "InProgress", "Progressing"),
    ),
    "rollout whose replicas crash before the deadline": (
        reported(2, CRASHED_AGAIN, workload=deployment(UPDATED, 3, 1, 2), replica_sets=BETWEEN),
        *("Reconciling", "InProgress", "Degraded"),
    ),
    "past the deadline": (
        reported(2, CRASHED_AGAIN, workload=deployment(LATE, 3, 1, 2), replica_sets=BETWEEN),
        *("Stalled", "Failed", "Degraded"),
    ),
    "corrected after the deadline": (
        reported(2, workload=deployment(LATE, 3, 1, 2, is_counted=False), replica_sets=BETWEEN),
        *("Reconciling", "InProgress", "Degraded"),
    ),
    "recovered": (
        reported(2, workload=deployment(COMPLETED, 2, 2, 2), replica_sets=ROLLED_OUT),
        *(None, "Current", "Healthy"),
    ),
    "scaled": (
        reported(3, workload=deployment(COMPLETED, 3, 3, 2), replica_sets=ROLLED_OUT),
        *(None, "Current", "Progressing"),
    ),
    "scaled and not counted": (
        reported(3, workload=deployment(COMPLETED, 2, 2, 2, is_counted=False), replica_sets=ROLLED_OUT),
        *(None, "Current", "Progressing"),
    ),
    "at zero": (
        reported(0, workload=deployment(COMPLETED, 0, 0, 0), autoscaling=SCALED_TO_ZERO),
        *(None, "Current", "Healthy"),
    ),
    "woken": (
        reported(
            1, workload=deployment(COMPLETED, 1, 1, 0), replica_sets=ROLLED_OUT, autoscaling=SCALED_TO_ZERO
        ),
        *(None, "Current", "Progressing"),
    ),
    "paused in a rollout": (
        reported(
            2,
            workload=deployment(UPDATED, 3, 1, 2),
            replica_sets=BETWEEN,
            annotations={"fairlead.dev/paused": "true"},
        ),
        *(None, "Current", "Suspended"),
    ),
    "refused": (
        reported(
            2,
            workload=deployment(COMPLETED, 2, 2, 2, template=FORMER),
            refusal=Problem("Refused", "a quota"),
        ),
        *("Stalled", "Failed", "Degraded"),
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_tools_that_wait_see(state: str) -> None:
    obj, shown, verdict, argo_health = STATES[state]

    own = [entry for entry in obj["status"]["conditions"] if entry["type"] in ("Reconciling", "Stalled")]

    assert [(entry["type"], entry["status"]) for entry in own] == ([(shown, "True")] if shown else [])
    assert (kstatus(obj), health(obj)["status"]) == (verdict, argo_health)


def test_a_refusal_that_passes_is_waited_for() -> None:
    complete = deployment(COMPLETED, 2, 2, 2, template=FORMER)

    obj = reported(2, workload=complete, refusal=Problem("ClaimTerminating", "the former claim is deleted"))

    assert kstatus(obj) == "InProgress"
