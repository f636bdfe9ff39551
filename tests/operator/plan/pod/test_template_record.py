"""The record of the pod template in force: which changes replace pods, and which leave them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.api.spec_hash import spec_hash
from llm_operator.observed import Observed, workload_key
from llm_operator.plan.pod.template_record import record_hash
from llm_operator.settings import Settings

NEXT_RELEASE = Settings(engine_image="engine:2", version="9.9.9")
DEPLOYMENT = workload_key("smollm2")
TEMPLATE = "fairlead.dev/pod-template"
SPEC_HASH = "fairlead.dev/spec-hash"
RECORD_HASH = "fairlead.dev/record-hash"
ROLLED_AT = "fairlead.dev/rolled-at"


def annotations(observed: Observed) -> dict[str, str]:
    found = observed.children[DEPLOYMENT]["metadata"]["annotations"]
    assert isinstance(found, dict)
    return found


def with_annotations(observed: Observed, **changes: str | None) -> Observed:
    """Return the state of the cluster with other annotations of the Deployment; None removes one."""
    workload = observed.children[DEPLOYMENT]
    names = {"template": TEMPLATE, "spec_hash": SPEC_HASH, "record_hash": RECORD_HASH, "rolled_at": ROLLED_AT}
    changed = annotations(observed) | {names[key]: value for key, value in changes.items()}
    kept = {name: value for name, value in changed.items() if value is not None}
    metadata = workload["metadata"] | {"annotations": kept}
    children = {**observed.children, DEPLOYMENT: workload | {"metadata": metadata}}
    return replace(observed, children=children)


def managed_by(observed: Observed, *managers: str) -> Observed:
    """Return the state of the cluster where these managers have set the pods' spec, with a default in it."""
    workload = observed.children[DEPLOYMENT]
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}
    entries = [{"manager": manager, "fieldsV1": fields} for manager in managers]
    metadata = workload["metadata"] | {"managedFields": entries}
    template = json.loads(json.dumps(workload["spec"]["template"]))
    template["spec"]["dnsPolicy"] = "ClusterFirst"
    spec = workload["spec"] | {"template": template}
    return replace(
        observed, children={**observed.children, DEPLOYMENT: workload | {"metadata": metadata, "spec": spec}}
    )


def replica_set(observed: Observed, revision: int, uid: str = "d-1") -> dict[str, Any]:
    """Return a ReplicaSet with the annotations that Kubernetes copies from the Deployment."""
    copied = {**annotations(observed), "deployment.kubernetes.io/revision": str(revision)}
    return {
        "metadata": {
            "name": f"smollm2-engine-{revision}",
            "annotations": copied,
            "ownerReferences": [{"uid": uid}],
        }
    }


def with_replica_sets(observed: Observed, *replica_sets: dict[str, Any]) -> Observed:
    workload = observed.children[DEPLOYMENT]
    children = {
        **observed.children,
        DEPLOYMENT: workload | {"metadata": workload["metadata"] | {"uid": "d-1"}},
    }
    return replace(observed, children=children, replica_sets=replica_sets)


def annotated(manifest: dict[str, Any], **given: Any) -> dict[str, Any]:
    return manifest | {"metadata": {**manifest["metadata"], "annotations": given}}


def rolled_at(manifest: dict[str, Any], value: Any) -> dict[str, Any]:
    return annotated(manifest, **{ROLLED_AT: value})


# --- changes of the spec


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"autoscaling": {"min": 0, "max": 9}},
        {"routing": {"policy": "round_robin"}},
        {"rollout": {"strategy": "inPlace"}},
        {"rollout": {"maxSurge": 2, "maxUnavailable": 1, "progressDeadlineSeconds": 60}},
        {"budget": {"enabled": False}},
        {"model": {"uri": "hf://org/name", "servedNames": ["a", "b"]}},
        {"engine": {}, "resources": {"gpu": 0}},
    ],
)
def test_a_field_outside_the_pods_rolls_nothing_after_an_upgrade(
    planned: Any, manifest: Any, change: dict[str, Any]
) -> None:
    before = planned(manifest())

    after = planned(manifest(**change), before.observed, NEXT_RELEASE)

    assert after.template == before.template


def test_a_change_of_the_pods_takes_the_new_image(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    changed = planned(manifest(engine={"maxModelLen": 512}), before.observed, NEXT_RELEASE)

    assert changed.engine["image"] == "engine:2"


def test_a_reverted_spec_returns_to_its_template_and_image(planned: Any, manifest: Any) -> None:
    first = planned(manifest())
    second = planned(manifest(engine={"maxModelLen": 512}), first.observed, NEXT_RELEASE)
    retained = with_replica_sets(
        second.observed, replica_set(first.observed, 1), replica_set(second.observed, 2)
    )

    reverted = planned(manifest(), retained, NEXT_RELEASE)

    assert reverted.template == first.template
    assert reverted.engine["image"] == "engine:1"


def test_a_reverted_spec_takes_the_newest_of_its_templates(planned: Any, manifest: Any) -> None:
    first = planned(manifest())
    rolled = planned(rolled_at(manifest(), "noon"), first.observed, NEXT_RELEASE)
    edited = planned(manifest(replicas=2, engine={"maxModelLen": 512}), rolled.observed, NEXT_RELEASE)
    retained = with_replica_sets(
        edited.observed, *(replica_set(each.observed, number) for number, each in ((9, first), (10, rolled)))
    )

    reverted = planned(manifest(), retained, NEXT_RELEASE)

    assert reverted.template == rolled.template


def test_a_replica_set_of_another_owner_is_not_used(planned: Any, manifest: Any) -> None:
    first = planned(manifest())
    second = planned(manifest(engine={"maxModelLen": 512}), first.observed)
    foreign = with_replica_sets(second.observed, replica_set(first.observed, 1, uid="other"))

    reverted = planned(manifest(), foreign, NEXT_RELEASE)

    assert reverted.engine["image"] == "engine:2"


# --- adopting the operator's image


def test_rolled_at_takes_the_operators_image_once(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    rolled = planned(rolled_at(manifest(), "noon"), before.observed, NEXT_RELEASE)
    later = planned(rolled_at(manifest(), "noon"), rolled.observed, Settings(engine_image="engine:3"))

    assert rolled.engine["image"] == "engine:2"
    assert later.template == rolled.template


def test_a_removed_rolled_at_rolls_nothing(planned: Any, manifest: Any) -> None:
    rolled = planned(rolled_at(manifest(), "noon"))
    removed = planned(manifest(), rolled.observed, NEXT_RELEASE)

    again = planned(rolled_at(manifest(), "noon"), removed.observed, NEXT_RELEASE)

    assert removed.template == rolled.template
    assert again.template == rolled.template


def test_a_spec_reverted_after_rolled_at_does_not_return_to_an_image_before_it(
    planned: Any, manifest: Any
) -> None:
    first = planned(manifest())
    second = planned(manifest(engine={"maxModelLen": 512}), first.observed)
    retained = with_replica_sets(second.observed, replica_set(first.observed, 1))

    reverted = planned(rolled_at(manifest(), "noon"), retained, NEXT_RELEASE)

    assert reverted.engine["image"] == "engine:2"


def test_rolled_at_may_be_a_number_in_a_local_file(planned: Any, manifest: Any) -> None:
    assert (
        planned(rolled_at(manifest(), 5)).goal.apply[DEPLOYMENT]["metadata"]["annotations"][ROLLED_AT] == "5"
    )


# --- broken and modified records

EVIL = json.dumps({"spec": {"containers": [{"name": "engine", "image": "evil:1"}]}})
DAMAGES = [
    pytest.param({"template": "{"}, id="template is not JSON"),
    pytest.param({"template": "[]"}, id="template is not an object"),
    pytest.param({"template": EVIL}, id="template was modified"),
    pytest.param({"template": None}, id="template was removed"),
    pytest.param({"record_hash": "0"}, id="hash was modified"),
    pytest.param({"record_hash": None}, id="hash was removed"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_restored_from_a_replica_set(
    planned: Any, manifest: Any, damage: dict[str, Any]
) -> None:
    before = planned(manifest())
    damaged = with_replica_sets(with_annotations(before.observed, **damage), replica_set(before.observed, 1))

    restored = planned(manifest(), damaged, NEXT_RELEASE)

    assert restored.template == before.template
    assert annotations(restored.observed) == annotations(before.observed)


@pytest.mark.parametrize("template", ["{", "[]"])
def test_a_record_with_the_hash_of_its_text_and_no_template_is_restored(
    planned: Any, manifest: Any, template: str
) -> None:
    before = planned(manifest())
    written = annotations(before.observed)
    own_hash = record_hash(template, written[SPEC_HASH], written.get(ROLLED_AT, ""))
    damaged = with_annotations(before.observed, template=template, record_hash=own_hash)

    restored = planned(manifest(), with_replica_sets(damaged, replica_set(before.observed, 1)), NEXT_RELEASE)

    assert restored.template == before.template


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_restored_from_the_live_template(
    planned: Any, manifest: Any, damage: dict[str, Any]
) -> None:
    before = planned(manifest())
    live = managed_by(with_annotations(before.observed, **damage), "fairlead")

    restored = planned(manifest(), live, NEXT_RELEASE)

    assert restored.template == live.children[DEPLOYMENT]["spec"]["template"]
    assert planned(manifest(), restored.observed, NEXT_RELEASE).template == restored.template


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_live_template_that_somebody_else_has_modified_is_not_recorded(
    planned: Any, manifest: Any, damage: dict[str, Any]
) -> None:
    before = planned(manifest())
    live = managed_by(with_annotations(before.observed, **damage), "fairlead", "kubectl-edit")

    restored = planned(manifest(), live, NEXT_RELEASE)

    assert restored.engine["image"] == "engine:2"


def test_the_live_template_of_another_spec_is_not_recorded(planned: Any, manifest: Any) -> None:
    before = planned(manifest())
    live = managed_by(with_annotations(before.observed, spec_hash="v2-0"), "fairlead")

    assert planned(manifest(), live, NEXT_RELEASE).engine["image"] == "engine:2"


def test_a_template_that_is_too_large_to_record_is_refused_with_its_size(planned: Any, manifest: Any) -> None:
    large = [{"name": f"V{index}", "value": "x" * 4000} for index in range(70)]

    with pytest.raises(SpecError, match=r"the pod template takes \d+ bytes as JSON; at most 253952"):
        planned(manifest(engine={"env": large}))


# --- a cache, and defaults that are written out

CACHE = {"uri": "hf://org/name", "cache": {"size": "10Gi"}}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def downloaded(planned: Any, given: dict[str, Any], observed: Observed) -> Any:
    """Return the plan of a spec with a cache once its download has ended."""
    fetching = planned(given, observed, NEXT_RELEASE)
    children = {
        key: {**child, "status": COMPLETE} if key.kind == "Job" else child
        for key, child in fetching.goal.apply.items()
    }
    return planned(given, replace(observed, children=children), NEXT_RELEASE)


def claim_of_model(plan: Any) -> dict[str, Any] | None:
    (volume,) = (entry for entry in plan.pod["volumes"] if entry["name"] == "models")
    claim: dict[str, Any] | None = volume.get("persistentVolumeClaim")
    return claim


def test_a_cache_of_a_size_reaches_the_pods_when_it_is_added_and_dropped(planned: Any, manifest: Any) -> None:
    before = planned(manifest())

    added = downloaded(planned, manifest(model=CACHE), before.observed)
    dropped = planned(manifest(), added.observed, NEXT_RELEASE)

    assert claim_of_model(before) is None
    assert claim_of_model(added) is not None and "initContainers" not in added.pod
    assert claim_of_model(dropped) is None and dropped.pod["initContainers"]


@pytest.mark.parametrize("overlays", ["podTemplate", "profile"])
def test_a_volume_of_ones_own_for_the_model_rolls_nothing_after_an_upgrade(
    planned: Any, manifest: Any, overlays: str
) -> None:
    own = {"name": "models", "persistentVolumeClaim": {"claimName": "mine"}}
    template = {"spec": {"volumes": [own]}}
    profiles = {"own": {"podTemplate": template}} if overlays == "profile" else {}
    choice = {"profile": "own"} if overlays == "profile" else {"podTemplate": template}
    given = manifest(model=CACHE, **choice)
    release = replace(NEXT_RELEASE, profiles=profiles)
    fetching = planned(given, settings=release)
    done = {key: {**child, "status": COMPLETE} for key, child in fetching.goal.apply.items()}
    before = planned(given, Observed(children=done), release)

    after = planned(given, before.observed, replace(release, engine_image="engine:3"))
    without = {"own": {"podTemplate": {}}} if profiles else {}
    changed = planned(given, before.observed, replace(release, profiles=without))

    assert after.template == changed.template == before.template


WRITTEN_OUT = [
    ({"resources": {"gpu": 4}}, {"resources": {"gpu": 4, "gpuResource": "nvidia.com/gpu"}}),
    ({"model": CACHE}, {"model": {**CACHE, "cache": {"size": "10Gi", "accessMode": "ReadWriteMany"}}}),
]


@pytest.mark.parametrize(
    ("first", "second"), [*WRITTEN_OUT, *((written, left_out) for left_out, written in WRITTEN_OUT)]
)
def test_a_default_that_is_written_out_or_left_out_rolls_nothing(
    planned: Any, manifest: Any, first: dict[str, Any], second: dict[str, Any]
) -> None:
    before = downloaded(planned, manifest(**first), Observed())

    after = planned(manifest(**second), before.observed, Settings(engine_image="engine:3"))

    assert after.template == before.template
    # The record is made for the spec as it is given, whichever spelling it had before.
    assert annotations(after.observed)[SPEC_HASH] == spec_hash(parse(manifest(**second)).spec)


def test_the_default_resource_is_a_value_where_there_is_a_profile(planned: Any, manifest: Any) -> None:
    profiles = {"amd": {"resources": {"gpu": 1, "gpuResource": "amd.com/gpu"}}}
    release = Settings(engine_image="engine:1", profiles=profiles)
    before = planned(manifest(profile="amd"), settings=release)

    nvidia = manifest(profile="amd", resources={"gpuResource": "nvidia.com/gpu"})
    after = planned(nvidia, before.observed, release)

    assert before.engine["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert after.engine["resources"]["limits"] == {"nvidia.com/gpu": "1"}
