"""A Deployment that somebody paused by hand."""

import pytest
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition
from llm_operator.observed import Observed, workload_key
from llm_operator.status.assess import assess


def conditions(replicas: int = 1, updated: int = 0, is_paused: bool = True) -> dict[str, Condition]:
    """Return the conditions with one wanted and ready replica, of which `updated` have the newest template."""
    status = {
        "observedGeneration": 2,
        "replicas": replicas,
        "readyReplicas": 1,
        "updatedReplicas": updated,
        "conditions": [{"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}],
    }
    spec = {"paused": True} if is_paused else {}
    workload = {"metadata": {"name": "smollm2-engine", "generation": 2}, "status": status, "spec": spec}
    subject = {"metadata": {"name": "smollm2", "namespace": "default"}}
    observed = Observed(subject=subject, children={workload_key("smollm2"): workload})
    found = assess(LLMDeploymentSpec(model=Model(uri="a/b")), observed).conditions
    return {each.type: each for each in found}


@pytest.mark.parametrize(("replicas", "updated"), [(1, 0), (2, 1)])
def test_a_rollout_that_a_pause_holds_up_has_it_as_its_reason(replicas: int, updated: int) -> None:
    found = conditions(replicas, updated)

    assert {found[kind].reason for kind in ("Progressing", "Degraded", "Reconciling")} == {"DeploymentPaused"}
    assert (found["Progressing"].status, found["Degraded"].status) == ("False", "True")
    assert "kubectl rollout resume deployment/smollm2-engine" in found["Degraded"].message
    assert found["Ready"].status == "True"


def test_a_pause_that_holds_nothing_up_is_no_problem() -> None:
    found = conditions(updated=1)

    assert (found["Degraded"].status, found["Progressing"].reason) == ("False", "Complete")


def test_a_rollout_that_is_not_paused_goes_on() -> None:
    found = conditions(is_paused=False)

    assert (found["Degraded"].status, found["Progressing"].reason) == ("False", "RollingOut")
