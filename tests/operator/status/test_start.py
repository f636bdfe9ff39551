"""The seconds of the last start, from a pod's timestamps and the engine's report."""

from dataclasses import replace
from typing import Any

from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Start
from llm_operator.observed import Observed, Replica, StartReport, workload_key
from llm_operator.status.assess import assess
from llm_operator.status.start import last_start, replica_to_ask

REPLICA = Replica("a", "2026-01-01T00:01:40Z", "10.0.0.1")
SECONDS = {"import": 4.0, "load": 11.2, "warm up": 5.0}
SPEC = LLMDeploymentSpec(Model("hf://org/name"))
METADATA = {"name": "smollm2", "namespace": "default", "generation": 1}


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def pod(name: str = "a", ready: int | None = 125, restarts: int = 0, started: int = 100) -> dict[str, Any]:
    """Return a pod that was scheduled after 3 s, fetched its model from second 20 on, and loads it."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(3)}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": at(ready)})
    fetched = {"terminated": {"exitCode": 0, "startedAt": at(20), "finishedAt": at(99)}}
    engine = {"name": "engine", "restartCount": restarts, "state": {"running": {"startedAt": at(started)}}}
    return {
        "metadata": {"name": name, "creationTimestamp": at(0)},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": conditions,
            "initContainerStatuses": [{"name": "model", "restartCount": 0, "state": fetched}],
            "containerStatuses": [engine],
        },
    }


def observed(
    *pods: dict[str, Any], report: StartReport | None = None, before: Start | None = None
) -> Observed:
    start = {} if before is None else {"start": {"pod": before.pod, "startedAt": before.started_at}}
    if before is not None:
        start["start"] |= {"loaded": before.loaded, "warmed": before.warmed}
    return Observed(subject={"metadata": METADATA, "status": start}, pods=pods, start_report=report)


def reported(phase: str = "", is_final: bool = True, **seconds: float) -> StartReport:
    return StartReport(REPLICA, phase, 100, seconds or SECONDS, is_final)


def test_every_phase_of_a_finished_start_has_its_seconds() -> None:
    assert last_start(observed(pod(), report=reported())) == Start(
        pod="a", started_at=at(100), scheduled=3, pulled=17, fetched=79, loaded=15, warmed=5, ready=5
    )


def test_without_the_engines_report_its_phases_belong_to_ready() -> None:
    start = last_start(observed(pod()))
    assert start is not None
    assert (start.loaded, start.warmed, start.ready) == (None, None, 25)


def test_seconds_that_the_engine_reported_before_stay_after_a_restart_of_the_operator() -> None:
    before = Start(pod="a", started_at=at(100), loaded=15, warmed=5)
    start = last_start(observed(pod(), before=before))
    assert start is not None
    assert (start.loaded, start.warmed, start.ready) == (15, 5, 5)


def test_a_restarted_container_has_no_seconds_of_earlier_phases() -> None:
    before = Start(pod="a", started_at=at(100), loaded=15, warmed=5)
    start = last_start(observed(pod(restarts=1, started=1000, ready=1030), before=before))
    assert start == Start(pod="a", started_at=at(1000), ready=30)


def test_a_start_in_progress_has_the_phases_that_have_ended() -> None:
    loading = reported("load", is_final=False, **{"import": 4.0})
    start = last_start(observed(pod(ready=None), report=loading))
    assert start == Start(pod="a", started_at=at(100), scheduled=3, pulled=17, fetched=79)


def test_the_last_start_is_that_of_the_replica_that_became_ready_last() -> None:
    start = last_start(observed(pod("a", ready=125), pod("b", ready=130), pod("c", ready=None)))
    assert start is not None and start.pod == "b"


def test_there_is_no_start_before_a_node_took_the_pod() -> None:
    waiting = {"metadata": {"name": "a", "creationTimestamp": at(0)}, "status": {"phase": "Pending"}}
    assert last_start(observed(waiting)) is None


def test_there_is_no_start_without_pods() -> None:
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = at(200)
    assert last_start(observed()) is None
    assert last_start(observed(leaving)) is None


def test_a_starting_replica_is_asked_until_it_serves() -> None:
    loading = reported("load", is_final=False)
    assert replica_to_ask(observed(pod(ready=None))) == REPLICA
    assert replica_to_ask(observed(pod(ready=None), report=loading)) == REPLICA
    assert replica_to_ask(observed(pod(ready=None), report=reported())) is None


def test_a_ready_replica_is_asked_once() -> None:
    known = Start(pod="a", started_at=at(100), loaded=15, warmed=5)
    assert replica_to_ask(observed(pod())) == REPLICA
    assert replica_to_ask(observed(pod(), report=reported())) is None
    assert replica_to_ask(observed(pod(), before=known)) is None


def test_a_replica_whose_engine_does_not_run_is_not_asked() -> None:
    fetching = pod(ready=None)
    fetching["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    assert replica_to_ask(observed(fetching)) is None


def test_a_percentage_is_that_of_a_replica_that_runs() -> None:
    workload = {workload_key("smollm2"): {"metadata": {"generation": 1}, "spec": {}, "status": {}}}
    state = observed(pod(ready=None), report=reported("load", is_final=False))
    state = replace(state, children=workload, subject={**state.subject, "spec": {"replicas": 1}})

    def message(state: Observed) -> str:
        return next(each.message for each in assess(SPEC, state).conditions if each.type == "Ready")

    assert message(state) == "the engine loads the model: 100 %"
    for other in (pod("b", ready=None), pod(ready=None, started=110)):
        assert message(replace(state, pods=(other,))) == "the engine loads the model"
