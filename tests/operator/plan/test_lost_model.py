"""A user's claim on which engines find no model any more."""

from typing import Any

import pytest
from llm_operator.observed import ChildKey, Observed, fetch_key, workload_key

from engine_server.contract.cluster.model_folder import no_model

MINE = {"uri": "hf://org/name", "cache": {"claim": "mine"}}
CREATED = {"uri": "hf://org/name", "cache": {"size": "1Gi"}}
EMPTY = no_model("/models/model", "the folder is empty")
COMPLETE = {
    "conditions": [{"type": "Complete", "status": "True"}],
    "completionTime": "2026-01-01T12:00:00Z",
}
BEFORE, AFTER, LATEST = (f"2026-01-01T{time}Z" for time in ("11:59:00", "12:01:00", "12:02:00"))
WORKLOAD = workload_key("smollm2")


def kinds(goal: Any) -> set[str]:
    return {key.kind for key in goal.goal.apply}


def served(planned: Any, manifest: Any, model: dict[str, Any] = MINE) -> dict[ChildKey, dict[str, Any]]:
    """Return the children after a download."""
    first = planned(manifest(model=model)).goal.apply
    jobs = {key: child | {"status": COMPLETE} for key, child in first.items() if key.kind == "Job"}
    done = planned(manifest(model=model), Observed(children={**first, **jobs})).goal.apply
    return {**done, WORKLOAD: with_uid(done[WORKLOAD])}


def with_uid(child: dict[str, Any]) -> dict[str, Any]:
    return {**child, "metadata": {**child["metadata"], "uid": "w"}}


def seen(
    children: dict[ChildKey, dict[str, Any]],
    message: str,
    started: str,
    state: str = "lastState",
    template: str | None = None,
    is_ready: bool = False,
) -> Observed:
    """Return the cluster with a pod whose engine has ended."""
    annotations = dict(children[WORKLOAD]["metadata"]["annotations"])
    if template is not None:
        annotations["fairlead.dev/pod-template"] = template
    replica_set = {"metadata": {"uid": "r", "annotations": annotations, "ownerReferences": [{"uid": "w"}]}}
    ended = {"terminated": {"exitCode": 1, "message": message, "startedAt": started, "finishedAt": LATEST}}
    pod = {
        "metadata": {"name": "p", "ownerReferences": [{"uid": "r"}]},
        "status": {"containerStatuses": [{"name": "engine", "ready": is_ready, state: ended}]},
    }
    return Observed(children=children, pods=(pod,), replica_sets=(replica_set,))


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_the_download_runs_again_and_keeps_the_template(planned: Any, manifest: Any, state: str) -> None:
    children = served(planned, manifest)

    again = planned(manifest(model=MINE), seen(children, EMPTY, AFTER, state))

    assert "Job" in kinds(again)
    assert again.template == children[WORKLOAD]["spec"]["template"]
    # Without its record the model stays lost when the pod is gone, and the download goes on.
    later = planned(manifest(model=MINE), Observed(children={**children, **again.goal.apply}))
    assert "Job" in kinds(later) and not later.goal.delete + later.goal.release


def test_an_engine_that_started_before_the_end_of_the_last_download_does_not_count(
    planned: Any, manifest: Any
) -> None:
    children = served(planned, manifest)

    later = planned(manifest(model=MINE), seen(children, EMPTY, BEFORE))

    assert "Job" not in kinds(later)
    assert later.child("Deployment")["metadata"] == {
        name: value for name, value in children[WORKLOAD]["metadata"].items() if name != "uid"
    }


def test_an_engine_that_is_ready_has_found_its_model(planned: Any, manifest: Any) -> None:
    children = served(planned, manifest)

    assert "Job" not in kinds(planned(manifest(model=MINE), seen(children, EMPTY, AFTER, is_ready=True)))


@pytest.mark.parametrize(
    ("message", "template"),
    [
        pytest.param("CUDA error", None, id="another failure"),
        pytest.param(no_model("/models/draft", "the folder is empty"), None, id="another model"),
        pytest.param(EMPTY, "{}", id="an engine of another template"),
    ],
)
def test_other_ends_start_no_download(
    planned: Any, manifest: Any, message: str, template: str | None
) -> None:
    children = served(planned, manifest)

    goal = planned(manifest(model=MINE), seen(children, message, AFTER, template=template))

    assert "Job" not in kinds(goal)


def test_a_created_claim_is_known_by_its_uid_alone(planned: Any, manifest: Any) -> None:
    children = served(planned, manifest, CREATED)

    assert "Job" not in kinds(planned(manifest(model=CREATED), seen(children, EMPTY, AFTER)))


def test_the_time_of_a_later_download_replaces_that_of_the_first(planned: Any, manifest: Any) -> None:
    children = served(planned, manifest)
    again = planned(manifest(model=MINE), seen(children, EMPTY, AFTER)).goal.apply
    (job,) = (key for key in again if key.kind == "Job")
    ended = {**again[job], "status": COMPLETE | {"completionTime": "2026-01-01T13:00:00Z"}}

    done = planned(manifest(model=MINE), seen({**again, job: ended}, EMPTY, AFTER))

    assert done.child("Deployment")["metadata"]["annotations"]["fairlead.dev/cached-at"] == (
        "2026-01-01T13:00:00Z"
    )
    assert done.goal.release == (fetch_key(job.name),)
    children = {key: child for key, child in done.goal.apply.items() if key != job}
    assert "Job" not in kinds(planned(manifest(model=MINE), seen(children, EMPTY, AFTER)))


def test_a_model_that_engines_never_see_is_downloaded_again_once_for_each_template(
    planned: Any, manifest: Any
) -> None:
    children = served(planned, manifest)
    for hour in (13, 14):
        lost = seen(children, EMPTY, f"2026-01-01T{hour - 1}:30:00Z")
        again = planned(manifest(model=MINE), lost)
        jobs = {key: child for key, child in again.goal.apply.items() if key.kind == "Job"}
        assert len(jobs) == (hour == 13)
        ended = COMPLETE | {"completionTime": f"2026-01-01T{hour}:00:00Z"}
        jobs = {key: child | {"status": ended} for key, child in jobs.items()}
        done = planned(manifest(model=MINE), seen({**again.goal.apply, **jobs}, EMPTY, AFTER)).goal.apply
        children = {key: with_uid(child) for key, child in done.items()}

    rolled = manifest(model=MINE)
    rolled["metadata"]["annotations"] = {"fairlead.dev/rolled-at": "2026-01-02"}
    rolled_children = {key: with_uid(child) for key, child in planned(rolled, lost).goal.apply.items()}
    lost = seen(rolled_children, EMPTY, "2026-01-01T15:00:00Z")
    assert "Job" in kinds(planned(rolled, lost))
