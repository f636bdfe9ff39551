"""Rollouts that fail: Progressing is False once a new replica has failed repeatedly."""

from typing import Any

import pytest
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.observed import Observed, workload_key
from llm_operator.status.assess import assess

OLD, NEW = "old", "new"


def replica_set(uid: str, revision: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "annotations": {"deployment.kubernetes.io/revision": str(revision)}}}


# The names of revisions do not sort by number.
REPLICA_SETS = (replica_set(NEW, 10), replica_set(OLD, 9))


def pod(replica_set: str, restarts: int, **container: Any) -> dict[str, Any]:
    engine = {"name": "engine", "ready": False, "restartCount": restarts, **container}
    owner = {"kind": "ReplicaSet", "uid": replica_set}
    return {"metadata": {"name": "p", "ownerReferences": [owner]}, "status": {"containerStatuses": [engine]}}


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": "no such image"}}}


ENDED = {"terminated": {"exitCode": 1, "message": "wrong flag"}}
RUNNING_AGAIN = {"state": {"running": {}}, "lastState": ENDED}


def progressing(*pods: dict[str, Any], observed_generation: int = 2) -> tuple[str, str, str]:
    """Return status, reason and message during a rollout with two replicas of the old version ready."""
    status = {
        "observedGeneration": observed_generation,
        "replicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 1,
    }
    workload = {"metadata": {"generation": 2}, "status": status}
    subject = {"metadata": {"name": "smollm2", "namespace": "default", "generation": 1}}
    children = {workload_key("smollm2"): workload}
    observed = Observed(subject=subject, children=children, pods=pods, replica_sets=REPLICA_SETS)
    spec = LLMDeploymentSpec(model=Model(uri="a/b"), replicas=2)
    (found,) = (entry for entry in assess(spec, observed).conditions if entry.type == "Progressing")
    return found.status, found.reason, found.message


def test_a_crash_loop_of_a_new_replica_ends_the_progress() -> None:
    back_off = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}

    assert progressing(pod(NEW, 1, **back_off)) == ("False", "CrashLoopBackOff", "wrong flag")


def test_a_new_replica_that_runs_between_two_crashes_makes_no_progress() -> None:
    assert progressing(pod(NEW, 2, **RUNNING_AGAIN)) == ("False", "CrashLoopBackOff", "wrong flag")


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull"])
def test_an_image_that_a_new_replica_cannot_pull_ends_the_progress(reason: str) -> None:
    assert progressing(pod(NEW, 0, **waiting(reason))) == ("False", "ImagePullBackOff", "no such image")


def test_a_single_restart_is_progress() -> None:
    assert progressing(pod(NEW, 1, **RUNNING_AGAIN))[:2] == ("True", "RollingOut")


def test_a_failing_replica_of_the_old_version_does_not_end_the_progress() -> None:
    assert progressing(pod(OLD, 5, **RUNNING_AGAIN), pod(NEW, 0))[:2] == ("True", "RollingOut")


def test_failures_before_the_change_was_seen_do_not_end_its_progress() -> None:
    failing = pod(NEW, 5, **RUNNING_AGAIN)

    assert progressing(failing, observed_generation=1)[:2] == ("True", "RollingOut")


def test_a_failing_replica_that_is_being_deleted_does_not_end_the_progress() -> None:
    failing = pod(NEW, 5, **RUNNING_AGAIN)
    failing["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert progressing(failing)[:2] == ("True", "RollingOut")
