"""Decisions: a plan, or the reason why there is none."""

from dataclasses import replace
from typing import Any

import pytest
from llm_operator.observed import ChildKey, Observed, workload_key
from llm_operator.plan.decide import NOTHING, decide
from llm_operator.settings import Settings

SETTINGS = Settings(engine_image="engine:1")
WORKLOAD = workload_key("smollm2")
SERVICE = ChildKey("v1", "Service", "smollm2-engine")


def existing(**metadata: Any) -> dict[str, Any]:
    owner = {"uid": "u-1", "controller": True}
    labels = {"fairlead.dev/llmdeployment": "smollm2"}
    defaults = {"name": SERVICE.name, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": defaults | metadata}


def observed(manifest: dict[str, Any], **service: Any) -> Observed:
    """Return the state of a cluster with the LLMDeployment and with a Service under the name of its child."""
    subject = manifest | {"metadata": {**manifest["metadata"], "uid": "u-1", "generation": 1}}
    return Observed(subject=subject, children={SERVICE: existing(**service)})


def test_a_valid_spec_is_planned(manifest: Any) -> None:
    decision = decide(observed(manifest(replicas=3)), SETTINGS)

    assert decision.spec is not None and decision.spec.replicas == 3
    assert set(decision.plan.apply) == {
        ("v1", "ServiceAccount", "smollm2-engine"),
        ("v1", "Service", "smollm2-engine"),
        ("policy/v1", "PodDisruptionBudget", "smollm2-engine"),
        ("apps/v1", "Deployment", "smollm2-engine"),
    }
    assert decision.refusal is None


@pytest.mark.parametrize("organizations", [frozenset(), frozenset({"google"})])
def test_a_served_name_that_could_be_another_objects_is_refused_with_the_allowed_organizations(
    manifest: Any, organizations: frozenset[str]
) -> None:
    settings = replace(SETTINGS, served_name_organizations=organizations)
    given = manifest(model={"uri": "a/b", "servedNames": ["Qwen/Qwen3-0.6B", "openai/gpt-oss-20b"]})

    decision = decide(observed(given), settings)

    assert decision.refusal is not None and decision.spec is None
    allowed = ", ".join(organizations) or "none"
    assert decision.refusal.message == (
        "spec.model.servedNames[1]: openai/gpt-oss-20b could be the NAMESPACE/NAME of another object, without a capital"
        f" or a dot in it; the administrator lists what else may stand before the slash: {allowed}"
    )


def test_a_served_name_of_an_allowed_organization_is_planned(manifest: Any) -> None:
    settings = replace(SETTINGS, served_name_organizations=frozenset({"openai"}))

    decision = decide(
        observed(manifest(model={"uri": "a/b", "servedNames": ["openai/gpt-oss-20b"]})), settings
    )

    assert decision.refusal is None


def test_a_paused_deployment_changes_nothing(manifest: Any) -> None:
    paused = manifest(replicas=3)
    paused["metadata"]["annotations"] = {"fairlead.dev/paused": "true"}

    decision = decide(observed(paused), SETTINGS)

    assert decision.plan == NOTHING
    assert decision.refusal is None


@pytest.mark.parametrize("spec", [{"replicas": -1}, {"podTemplate": {"spec": {"hostPID": True}}}])
def test_an_invalid_spec_changes_nothing_and_is_not_retried(manifest: Any, spec: dict[str, Any]) -> None:
    decision = decide(observed(manifest(**spec)), SETTINGS)

    assert decision.plan == NOTHING
    assert decision.refusal is not None and decision.refusal.reason == "InvalidSpec"
    assert not decision.may_succeed_later


def test_disabled_keys_reach_the_engines_of_an_invalid_spec_and_nothing_else_does(
    planned: Any, manifest: Any
) -> None:
    given = observed(manifest()).subject
    with_keys = planned(given, settings=replace(SETTINGS, engine_keys=True))
    invalid = given | {"spec": given["spec"] | {"replicas": -1}}

    decision = decide(Observed(subject=invalid, children=with_keys.observed.children), SETTINGS)

    ((key, workload),) = decision.plan.apply.items()
    assert decision.refusal is not None and decision.refusal.reason == "InvalidSpec"
    assert key == WORKLOAD
    assert workload == planned(given).child("Deployment")
    assert decide(Observed(subject=invalid, children=decision.plan.apply), SETTINGS).plan == NOTHING


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": {}, "ownerReferences": []}, id="of nobody"),
        pytest.param({"ownerReferences": [{"uid": "u-2", "controller": True}]}, id="of another controller"),
    ],
)
def test_nothing_is_applied_while_an_object_has_the_name_of_a_child(
    manifest: Any, metadata: dict[str, Any]
) -> None:
    decision = decide(observed(manifest(), **metadata), SETTINGS)

    assert decision.plan == NOTHING
    message = "a Service named smollm2-engine is there already and is not ours"
    assert decision.refusal == ("ChildExists", message)
    assert decision.may_succeed_later


def test_children_of_a_deleted_namesake_are_awaited(manifest: Any) -> None:
    former = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "name": "smollm2"}
    owner = {**former, "uid": "u-0", "controller": True}

    decision = decide(observed(manifest(), ownerReferences=[owner]), SETTINGS)

    assert decision.plan == NOTHING
    assert decision.refusal == (
        "ChildTerminating",
        "the Service smollm2-engine of a deleted LLMDeployment of the same name is still there; Kubernetes deletes it",
    )
    assert decision.may_succeed_later


def test_children_of_another_kind_of_owner_with_our_name_are_no_namesakes(manifest: Any) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "LLMDeployment", "name": "smollm2", "uid": "u-0"}

    decision = decide(observed(manifest(), ownerReferences=[{**owner, "controller": True}]), SETTINGS)

    assert decision.refusal is not None and decision.refusal.reason == "ChildExists"


def test_disabled_keys_reach_the_engines_beside_an_object_with_the_name_of_a_child(
    planned: Any, manifest: Any
) -> None:
    given = observed(manifest()).subject
    with_keys = planned(given, settings=replace(SETTINGS, engine_keys=True))
    children = with_keys.observed.children | {SERVICE: existing(labels={}, ownerReferences=[])}

    decision = decide(Observed(subject=given, children=children), SETTINGS)

    assert decision.refusal is not None and decision.refusal.reason == "ChildExists"
    assert decision.plan.apply == {WORKLOAD: planned(given).child("Deployment")}


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": {}}, id="an owned child whose label was removed"),
        pytest.param({"ownerReferences": []}, id="an orphan with our label"),
    ],
)
def test_takes_over(manifest: Any, metadata: dict[str, Any]) -> None:
    decision = decide(observed(manifest(), **metadata), SETTINGS)

    assert SERVICE in decision.plan.apply
    assert decision.refusal is None


def test_a_profile_that_is_removed_during_a_download_changes_nothing(manifest: Any) -> None:
    model = {"uri": "hf://org/name", "cache": {"size": "1Gi"}}
    subject = manifest(model=model, profile="gpu-l4", resources={"memory": "1Gi"})
    subject = subject | {"metadata": {**subject["metadata"], "uid": "u-1", "generation": 1}}
    with_profile = Settings(engine_image="engine:1", profiles={"gpu-l4": {}, "gpu-h200": {}})
    started = decide(Observed(subject=subject), with_profile).plan
    assert {key.kind for key in started.apply} > {"Job", "PersistentVolumeClaim"}

    without = Settings(engine_image="engine:1", profiles={"gpu-h200": {}})
    decision = decide(Observed(subject=subject, children=started.apply), without)

    assert decision.plan == NOTHING
    assert decision.refusal is not None and decision.refusal.reason == "InvalidSpec"
    assert "the operator has no profile 'gpu-l4'; it has: gpu-h200" in decision.refusal.message
