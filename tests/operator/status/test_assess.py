"""The assessment: conditions from replicas, pods and problems."""

from datetime import UTC, datetime
from typing import Any

import pytest
from llm_operator.api.sections.autoscaling import Autoscaling
from llm_operator.api.sections.cache import Cache
from llm_operator.api.sections.model import Model
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition, Status
from llm_operator.observed import Fetch, Observed, Problem, workload_key
from llm_operator.status.assess import assess

from engine_server.contract.cluster.memory_shortage import MemoryShortage
from engine_server.contract.cluster.model_folder import no_model
from engine_server.contract.cluster.reasons import needs_person

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def workload(
    replicas: int = 0,
    ready: int = 0,
    updated: int | None = None,
    stale: bool = False,
    conditions: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"generation": 2},
        "status": {
            "observedGeneration": 1 if stale else 2,
            "replicas": replicas,
            "readyReplicas": ready,
            "updatedReplicas": replicas if updated is None else updated,
            "conditions": conditions or [],
        },
    }


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def engine(**state: Any) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "engine", "ready": False, **state}])


def fetch(**state: Any) -> dict[str, Any]:
    waiting = {"name": "engine", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    return pod(
        initContainerStatuses=[{"name": "model", "ready": False, **state}], containerStatuses=[waiting]
    )


def crashed(message: str, code: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {
        "state": {
            "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
        },
        "lastState": {"terminated": {"exitCode": code, "reason": reason, "message": message}},
    }


def subject(namespace: str = "default", conditions: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    metadata = {"name": "smollm2", "namespace": namespace, "generation": 7}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def assessed(
    wanted: int | None, deployment: dict[str, Any] | None, *pods: dict[str, Any], **observed: Any
) -> Status:
    """Assess an LLMDeployment that wants so many replicas; None is one whose spec is invalid."""
    spec = None if wanted is None else LLMDeploymentSpec(model=Model(uri="a/b"), replicas=wanted)
    children = {workload_key("smollm2"): deployment} if deployment is not None else {}
    given = {"subject": subject(), "children": children, "pods": pods, "now": NOON}
    return assess(spec, Observed(**(given | observed)))


def find(status: Status, kind: str) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == kind), None)


def outcome(status: Status, kind: str) -> tuple[str, str]:
    condition = find(status, kind)
    assert condition is not None
    return condition.status, condition.reason


def test_a_new_deployment_is_starting() -> None:
    status = assessed(2, None)
    assert outcome(status, "Ready") == ("False", "Starting")
    assert outcome(status, "Progressing") == ("True", "RollingOut")
    assert outcome(status, "Degraded") == ("False", "AsExpected")
    assert (status.observed_generation, status.replicas, status.ready_replicas) == (7, 0, 0)
    assert status.selector == "app.kubernetes.io/name=fairlead-engine,fairlead.dev/llmdeployment=smollm2"


def test_is_ready_and_complete_with_all_replicas_ready() -> None:
    status = assessed(2, workload(2, ready=2))
    assert outcome(status, "Ready") == ("True", "ReplicasReady")
    assert outcome(status, "Progressing") == ("False", "Complete")


def test_is_ready_and_progressing_with_one_replica_of_two() -> None:
    status = assessed(2, workload(2, ready=1))
    assert outcome(status, "Ready") == ("True", "ReplicasReady")
    assert outcome(status, "Progressing") == ("True", "RollingOut")
    assert status.conditions[0].message == "1 of 2 replicas answer"


def test_is_not_complete_by_counts_of_the_previous_generation() -> None:
    assert outcome(assessed(2, workload(2, ready=2, stale=True)), "Progressing") == ("True", "RollingOut")


def test_is_not_complete_while_an_old_replica_exists() -> None:
    assert outcome(assessed(2, workload(3, ready=3, updated=2)), "Progressing") == ("True", "RollingOut")


def test_zero_replicas_without_autoscaling_are_stopped_and_complete() -> None:
    status = assessed(0, workload(0))
    assert outcome(status, "Ready") == ("False", "Stopped")
    assert outcome(status, "Progressing") == ("False", "Complete")
    assert outcome(status, "Degraded") == ("False", "AsExpected")


def test_zero_replicas_with_autoscaling_are_ready_since_a_request_starts_one() -> None:
    spec = LLMDeploymentSpec(model=Model(uri="a/b"), replicas=0, autoscaling=Autoscaling(max=2))
    children = {workload_key("smollm2"): workload(0)}
    status = assess(spec, Observed(subject=subject(), children=children, pods=(), now=NOON))
    assert outcome(status, "Ready") == ("True", "ScaledToZero")


def test_loading_and_fetching_are_distinguished() -> None:
    assert outcome(assessed(1, workload(1), engine(state={"running": {}})), "Ready") == ("False", "Loading")
    assert outcome(assessed(1, workload(1), fetch(state={"running": {}})), "Ready") == (
        "False",
        "FetchingModel",
    )


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (
            engine(
                state={
                    "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nope:1"'}
                }
            ),
            "ImagePullBackOff",
            'Back-off pulling image "nope:1"',
        ),
        (engine(state={"waiting": {"reason": "ErrImagePull", "message": "x"}}), "ImagePullBackOff", "x"),
        (
            engine(**crashed("loading\nValueError: no config.json in /models/model\n")),
            "CrashLoopBackOff",
            "ValueError: no config.json in /models/model",
        ),
        (engine(**crashed("", code=3)), "CrashLoopBackOff", "it ended with exit code 3 and printed nothing"),
        (
            engine(**crashed("", code=137, reason="OOMKilled")),
            "CrashLoopBackOff",
            "it ran out of memory (OOMKilled)",
        ),
        (
            fetch(**crashed("Traceback\nfairlead fetch: there is no org/nope on huggingface.co")),
            "ModelFetchFailed",
            "the model could not be fetched: fairlead fetch: there is no org/nope on huggingface.co",
        ),
        (
            fetch(state={"terminated": {"exitCode": 1, "message": "no such model"}}),
            "ModelFetchFailed",
            "the model could not be fetched: no such model",
        ),
        (
            fetch(
                state={
                    "waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
                }
            ),
            "SecretNotFound",
            "there is no Secret hub",
        ),
        (
            pod(
                phase="Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                    }
                ],
            ),
            "Unschedulable",
            "none of 2 nodes takes the pod: 2 with too little free nvidia.com/gpu",
        ),
        (
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": '0/2 nodes are available: persistentvolumeclaim "models" not found.',
                    }
                ]
            ),
            "ClaimNotFound",
            "there is no PersistentVolumeClaim models",
        ),
        (
            fetch(**crashed("fairlead fetch: hf://a/b: https://hub failed: Client error '401 Unauthorized'")),
            "ModelAccessDenied",
            "the hub denies access to the model: accept its terms, and set spec.model.secretRef to a token that may "
            "read it: fairlead fetch: hf://a/b: https://hub failed: Client error '401 Unauthorized'",
        ),
        (
            engine(
                **crashed(
                    f"ValueError: weights: {MemoryShortage(30517, 15109, 'cuda')}\nEngineDeadError: the core ended"
                )
            ),
            "InsufficientGPUMemory",
            "the engine needs 30517 MiB of GPU memory, and 15109 MiB are available: EngineDeadError: the core ended",
        ),
        (
            engine(**crashed(f"fairlead engine: {no_model('/models/model', 'the folder is empty')}")),
            "ModelMissing",
            "fairlead engine: there is no config.json in /models/model (the folder is empty)",
        ),
        (
            engine(**crashed(f"fairlead engine: {no_model('/models/draft', 'the folder is empty')}")),
            "CrashLoopBackOff",
            "fairlead engine: there is no config.json in /models/draft (the folder is empty)",
        ),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted", "low on memory"),
    ],
)
def test_a_pods_reason_and_message_become_the_conditions(
    seen: dict[str, Any], reason: str, words: str
) -> None:
    status = assessed(1, workload(1), seen)
    assert outcome(status, "Ready") == ("False", reason)
    assert outcome(status, "Degraded") == ("True", reason)
    of_rollout = ("Progressing", "Reconciling")
    assert all(each.message == words for each in status.conditions if each.type not in of_rollout)


def test_no_condition_contains_credentials() -> None:
    line = "ProxyError: http://me:hunter2@proxy:3128 refused https://s3/model?X-Amz-Signature=hunter2"
    refusal = Problem("Refused", line)
    for status in (assessed(1, workload(1), fetch(**crashed(line))), assessed(1, None, refusal=refusal)):
        messages = [condition.message for condition in status.conditions]
        assert not any("hunter2" in message for message in messages)
        assert any("http://proxy:3128 refused https://s3/model" in message for message in messages)


def test_is_degraded_by_a_bad_new_replica_while_old_ones_answer() -> None:
    broken = engine(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    status = assessed(2, workload(3, ready=2, updated=1), broken)
    assert outcome(status, "Ready") == ("True", "ReplicasReady")
    assert outcome(status, "Degraded") == ("True", "ImagePullBackOff")


def test_is_not_degraded_by_pods_that_are_deleted_or_replaced() -> None:
    leaving = engine(**crashed("bye"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    evicted = pod(phase="Failed", reason="Evicted")
    assert outcome(assessed(1, workload(1, ready=1), leaving, evicted), "Degraded") == ("False", "AsExpected")


def test_is_degraded_when_the_deployment_cannot_create_pods() -> None:
    policy = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": 'pods "smollm2-engine-x7z" is forbidden: violates PodSecurity "restricted"',
    }
    status = assessed(1, workload(conditions=[policy]))
    assert outcome(status, "Ready") == ("False", "FailedCreate")
    assert outcome(status, "Degraded") == ("True", "FailedCreate")


def test_a_quota_is_named_without_the_changing_name_of_the_pod() -> None:
    quota = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": 'pods "smollm2-engine-x7z" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=1, '
        "used: nvidia.com/gpu=4, limited: nvidia.com/gpu=4",
    }
    status = assessed(1, workload(conditions=[quota]))
    assert outcome(status, "Ready") == ("False", "QuotaExceeded")
    assert status.conditions[0].message == (
        "no further pod can be created: it would exceed the quota gpus, requested: nvidia.com/gpu=1, "
        "used: nvidia.com/gpu=4, limited: nvidia.com/gpu=4"
    )


def test_is_degraded_when_a_rollout_exceeds_its_deadline() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "x"}
    status = assessed(1, workload(1, conditions=[late]))
    assert outcome(status, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert outcome(status, "Degraded") == ("True", "ProgressDeadlineExceeded")


@pytest.mark.parametrize("kind", ["Ready", "Progressing", "Degraded"])
def test_a_download_in_the_pods_beyond_the_deadline_names_the_remedy(kind: str) -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "x"}
    status = assessed(1, workload(1, conditions=[late]), fetch(state={"running": {}}))
    found = find(status, kind)
    assert found is not None and found.reason == "ProgressDeadlineExceeded"
    assert "longer than rollout.progressDeadlineSeconds by now; model.cache fetches it once" in found.message
    assert find(status, "Stalled") is None


def test_a_refusal_comes_first_and_ends_progress() -> None:
    refusal = Problem("InvalidSpec", "spec.podTemplate.spec.hostPID: no")
    status = assessed(1, None, refusal=refusal)
    kinds = ("Ready", "Progressing", "Degraded", "Stalled")
    assert {outcome(status, kind)[1] for kind in kinds} == {"InvalidSpec"}
    still_serving = assessed(1, workload(1, ready=1), refusal=refusal)
    assert outcome(still_serving, "Ready") == ("True", "ReplicasReady")


def test_is_stalled_only_where_the_user_must_act() -> None:
    refusal = Problem("ChildExists", "a Service named smollm2-engine is there already and is not ours")
    assert outcome(assessed(1, workload(1, ready=1), refusal=refusal), "Stalled") == ("True", "ChildExists")
    assert find(assessed(1, workload(1), engine(**crashed("bye"))), "Stalled") is None


def test_is_reconciling_while_children_of_a_deleted_namesake_are_awaited() -> None:
    refusal = Problem("ChildTerminating", "the Service smollm2-engine is still there")
    status = assessed(1, workload(1), refusal=refusal)
    assert outcome(status, "Ready") == ("False", "ChildTerminating")
    assert outcome(status, "Progressing") == ("True", "ChildTerminating")
    assert outcome(status, "Reconciling") == ("True", "ChildTerminating")
    assert outcome(status, "Degraded") == ("False", "AsExpected")
    assert find(status, "Stalled") is None


def test_a_paused_deployment_is_not_progressing_and_serves_on() -> None:
    paused = subject()
    paused["metadata"]["annotations"] = {"fairlead.dev/paused": ""}
    status = assessed(2, workload(1, ready=1), subject=paused)
    assert outcome(status, "Progressing") == ("False", "Paused")
    assert outcome(status, "Ready") == ("True", "ReplicasReady")


def test_an_annotation_with_the_value_false_does_not_pause() -> None:
    running = subject()
    running["metadata"]["annotations"] = {"fairlead.dev/paused": "false"}
    assert outcome(assessed(2, workload(1), subject=running), "Progressing") == ("True", "RollingOut")


def test_reports_the_image_in_force_and_the_restarts_of_all_pods() -> None:
    template = {
        "spec": {"containers": [{"name": "proxy", "image": "p:1"}, {"name": "engine", "image": "e:1"}]}
    }
    deployment = workload(2) | {"spec": {"template": template}}
    pods = (engine(restartCount=2), fetch(restartCount=1))
    status = assessed(2, deployment, *pods)
    assert (status.image, status.restarts) == ("e:1", 3)
    assert (assessed(2, None).image, assessed(2, None).restarts) == ("", 0)


def test_a_taken_name_is_reported_with_its_holder_and_the_name_that_works() -> None:
    status = assessed(1, None, subject=subject("team"), name_holders=(("chat", "default/a"),))
    condition = find(status, "NameTaken")
    assert condition is not None
    assert condition.message == "chat is held by default/a; requests reach this one as team/smollm2"
    assert find(assessed(1, None), "NameTaken") is None


def test_the_transition_time_stays_until_the_status_changes() -> None:
    first = assessed(1, workload(1))
    early = [
        entry | {"lastTransitionTime": "2025-01-01T00:00:00Z"} for entry in first.as_manifest()["conditions"]
    ]
    turned = assessed(1, workload(1, ready=1), subject=subject(conditions=tuple(early)))
    times = {entry.type: entry.last_transition_time for entry in turned.conditions}
    assert times == {
        "Ready": "2026-01-01T12:00:00Z",
        "Progressing": "2026-01-01T12:00:00Z",
        "Degraded": "2025-01-01T00:00:00Z",
    }


def test_an_invalid_spec_is_assessed_by_the_replicas_that_are_in_force() -> None:
    running = workload(2, ready=2) | {"spec": {"replicas": 2}}
    refusal = Problem("InvalidSpec", "spec.replicas: expected `int`")

    status = assessed(None, running, refusal=refusal)

    assert outcome(status, "Ready") == ("True", "ReplicasReady")
    assert outcome(status, "Degraded") == ("True", "InvalidSpec")
    assert status.conditions[0].message == "2 of 2 replicas answer"


def without_gpu() -> dict[str, Any]:
    """Return a pod for which no GPU is free."""
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(phase="Pending", conditions=[condition])


def gpu_workload(replicas: int, ready: int, updated: int) -> dict[str, Any]:
    container = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}}}
    spec = {"template": {"spec": {"containers": [container]}}}
    return {**workload(replicas, ready, updated), "spec": spec}


def test_a_surge_without_a_free_gpu_names_the_strategy_that_needs_none() -> None:
    degraded = find(assessed(1, gpu_workload(2, ready=1, updated=1), without_gpu()), "Degraded")

    assert degraded is not None and degraded.reason == "Unschedulable"
    assert "too little free nvidia.com/gpu; rollout.strategy: inPlace" in degraded.message


def test_a_first_start_without_a_free_gpu_names_no_strategy() -> None:
    degraded = find(assessed(1, gpu_workload(1, ready=0, updated=1), without_gpu()), "Degraded")

    assert degraded is not None and degraded.reason == "Unschedulable"
    assert "inPlace" not in degraded.message


def test_replicas_of_a_deleted_namesake_do_not_count() -> None:
    refusal = Problem("ChildTerminating", "the Deployment smollm2-engine is still there")
    dead = workload(2, ready=2)
    dead["metadata"]["ownerReferences"] = [{"uid": "before", "controller": True}]

    status = assessed(2, dead, engine(**crashed("bye")), refusal=refusal)

    assert outcome(status, "Ready") == ("False", "ChildTerminating")
    assert outcome(status, "Progressing") == ("True", "ChildTerminating")
    assert outcome(status, "Degraded") == ("False", "AsExpected")
    assert (status.replicas, status.ready_replicas, status.restarts) == (0, 0, 0)


def test_a_refused_deployment_with_a_cache_is_not_fetching() -> None:
    spec = LLMDeploymentSpec(model=Model(uri="hf://a/b", cache=Cache(size="1Gi")))
    refusal = Problem("ChildTerminating", "the Deployment smollm2-engine is still there")

    assert (
        outcome(assess(spec, Observed(subject=subject(), refusal=refusal)), "Ready")[1] == "ChildTerminating"
    )


def without_model(started: str, **state: Any) -> dict[str, Any]:
    """Return a pod whose engine found no model after a start."""
    ended = crashed(no_model("/models/model", "the folder is empty"))
    ended["lastState"]["terminated"]["startedAt"] = started
    return engine(**ended | state)


@pytest.mark.parametrize(
    ("download", "started", "expected"),
    [
        pytest.param(Fetch(), "2026-01-01T12:30:00Z", "AsExpected", id="that is downloaded again"),
        pytest.param(None, "2026-01-01T11:30:00Z", "AsExpected", id="that was downloaded since"),
        pytest.param(None, "2026-01-01T12:30:00Z", "ModelMissing", id="that it does not see on the claim"),
    ],
)
@pytest.mark.parametrize("state", [{}, {"state": {"running": {}}}], ids=["waiting", "running"])
def test_a_model_is_missing_only_where_no_download_brings_it(
    download: Fetch | None, started: str, expected: str, state: dict[str, Any]
) -> None:
    deployment = workload(1)
    deployment["metadata"]["annotations"] = {"fairlead.dev/cached-at": "2026-01-01T12:00:00Z"}

    status = assessed(1, deployment, without_model(started, **state), fetch=download)

    assert outcome(status, "Degraded")[1] == expected
    ready = find(status, "Ready")
    assert ready is not None and needs_person(ready.reason) == (expected == "ModelMissing")
    if expected == "ModelMissing":
        assert ready.message.startswith("the model was downloaded to the claim before the engine started")
