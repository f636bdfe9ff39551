"""Properties of plans, over specs generated from the CRD's schema."""

import copy
import json
from typing import Any

import pytest
from generated_specs import DISORDER, DISTURBED_TEMPLATES, LIKELY, changed, single_fields, specs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llm_operator.api import validation
from llm_operator.api.profiles import PROFILES as KNOWN_PROFILES
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.api.spec_hash import spec_hash
from llm_operator.kinds import CHILDREN
from llm_operator.observed import ChildKey, KeyHashes, Manifest, Observed, workload_key
from llm_operator.plan.decide import decide
from llm_operator.plan.pod.pods import pod_template
from llm_operator.settings import Settings
from msgspec import inspect
from tiers import tiered

PROFILES = {"gpu-l4": {"resources": {"gpu": 1}, "podTemplate": {"spec": {"nodeSelector": {"gpu": "l4"}}}}}
SETTINGS = Settings(engine_image="engine:1", profiles=PROFILES)
HASHES = KeyHashes(admin=("sha256:1",))
NEXT_RELEASE = Settings(engine_image="engine:2", version="9.9.9", profiles=PROFILES)
# Anything that the types of the schema admit, and mostly what its rules admit too.
ANY = specs({}) | specs({**LIKELY, "podTemplate": DISORDER})
VALID = specs(LIKELY)


def without_cache(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose Deployment waits for no download."""
    return spec | {"model": {name: value for name, value in spec["model"].items() if name != "cache"}}


# Specs that have a Deployment at once.
SERVING = VALID.map(without_cache)
CACHED = st.builds(
    lambda spec, cache: spec | {"model": {**spec["model"], "uri": "hf://a/b", "cache": cache}},
    SERVING,
    LIKELY["model.cache"],
)
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
SINGLE_FIELDS = single_fields(LIKELY)
# Of each way into the pods: the model, its cache, a profile, flags, files, resources, the template, and none.
TRIED_FIELDS = (
    "model.uri",
    "model.cache",
    "profile",
    "engine.args",
    "engine.files",
    "resources.gpu",
    "podTemplate",
    "replicas",
)


def subject(manifest: Any, spec: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = manifest() | {"spec": spec}
    return given | {"metadata": {**given["metadata"], "uid": "u-1", "generation": 1}}


def is_valid(manifest: dict[str, Any]) -> bool:
    try:
        parse(manifest)
    except SpecError:
        return False
    return True


@given(spec=ANY | VALID)
def test_every_spec_has_a_plan_or_a_message(manifest: Any, spec: dict[str, Any]) -> None:
    decision = decide(Observed(key_hashes=HASHES, subject=subject(manifest, spec)), SETTINGS)

    if decision.refusal is None:
        assert decision.plan.apply
        assert {(key.api_version, key.kind) for key in decision.plan.apply} <= CHILDREN.keys()
        json.dumps(list(decision.plan.apply.values()))
    else:
        assert decision.refusal.message
        assert not decision.plan.apply


MODELS = st.sampled_from(
    [{"uri": "hf://a/b"}, {"uri": "hf://a/b", "cache": {"size": "1Gi"}}, {"uri": "pvc://claim/path"}]
)


@given(model=MODELS, template=DISTURBED_TEMPLATES, is_of_profile=st.booleans())
def test_a_pod_template_with_anything_anywhere_gives_whole_pods_or_a_message(
    manifest: Any, model: dict[str, Any], template: dict[str, Any], is_of_profile: bool
) -> None:
    profiles = {"own": {"podTemplate": template}}
    choice = {"profile": "own"} if is_of_profile else {"podTemplate": template}
    if is_of_profile:
        try:
            validation.check(profiles, inspect.type_info(KNOWN_PROFILES), "profiles")
        except SpecError:
            return
    given = subject(
        manifest, {"model": model, "engine": {"files": [{"path": "/f", "content": "x"}]}, **choice}
    )

    decision = decide(Observed(subject=given), Settings(engine_image="engine:1", profiles=profiles))

    if decision.refusal is not None:
        assert decision.refusal.reason == "InvalidSpec"
        return
    for key, child in decision.plan.apply.items():
        if key.kind in ("Deployment", "Job"):
            assert_whole(child["spec"]["template"])
    if workload := decision.plan.apply.get(workload_key("smollm2")):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert "engine" in [
            container["name"] for container in workload["spec"]["template"]["spec"]["containers"]
        ]


def assert_whole(template: Manifest) -> None:
    """Fail unless each container has an image, each mount a volume, and each volume a type."""
    pod = template["spec"]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert "image" in container
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= names
    assert all(len(volume) == 2 for volume in pod["volumes"])


@given(spec=VALID)
def test_the_same_input_gives_the_same_plan_and_is_not_changed(manifest: Any, spec: dict[str, Any]) -> None:
    observed = Observed(key_hashes=HASHES, subject=subject(manifest, spec))
    before = copy.deepcopy(observed)

    assert decide(observed, SETTINGS) == decide(observed, SETTINGS)
    assert observed == before


@given(spec=VALID)
def test_a_plan_that_was_carried_out_plans_itself_again(manifest: Any, spec: dict[str, Any]) -> None:
    given = subject(manifest, spec)
    first = decide(Observed(key_hashes=HASHES, subject=given), SETTINGS)
    assume(first.refusal is None)

    again = decide(Observed(key_hashes=HASHES, subject=given, children=first.plan.apply), SETTINGS)

    assert again == first
    assert (again.plan.delete, again.plan.release) == ((), ())


@given(spec=CACHED)
def test_a_plan_after_the_download_plans_itself_again(manifest: Any, spec: dict[str, Any]) -> None:
    given = subject(manifest, spec)
    first = decide(Observed(key_hashes=HASHES, subject=given), SETTINGS)
    assume(first.refusal is None)
    children = {key: {**child, "status": COMPLETE} for key, child in first.plan.apply.items()}

    serving = decide(Observed(key_hashes=HASHES, subject=given, children=children), SETTINGS)
    again = decide(Observed(key_hashes=HASHES, subject=given, children=serving.plan.apply), SETTINGS)

    assert again.plan.apply == serving.plan.apply
    assert (again.plan.delete, again.plan.release, again.plan.requeue_after) == ((), (), None)


@given(spec=SERVING)
def test_the_next_release_changes_no_deployments_spec(
    planned: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    given = subject(manifest, spec)
    assume(is_valid(given))
    before = planned(given, settings=SETTINGS)

    after = planned(given, before.observed, NEXT_RELEASE)

    assert after.child("Deployment")["spec"] == before.child("Deployment")["spec"]


@given(spec=SERVING, other=SERVING, data=st.data())
def test_a_change_that_changes_the_pods_changes_the_hash(
    manifest: Any, spec: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    section = data.draw(st.sampled_from(sorted(other)))
    before, after = subject(manifest, spec), subject(manifest, {**spec, section: other[section]})
    assume(is_valid(before) and is_valid(after))
    first, second = parse(before), parse(after)

    if pod_template(first, SETTINGS) != pod_template(second, SETTINGS):
        assert spec_hash(first.spec) != spec_hash(second.spec)


def carried_out(
    given: dict[str, Any], children: dict[ChildKey, Manifest]
) -> tuple[Manifest, dict[ChildKey, Manifest]]:
    """Return the Deployment once a spec is carried out, its download included, and all children."""
    for _ in range(3):
        decision = decide(Observed(key_hashes=HASHES, subject=given, children=children), SETTINGS)
        assume(decision.refusal is None)
        gone = (*decision.plan.delete, *decision.plan.release)
        kept = {key: child for key, child in children.items() if key not in gone}
        children = kept | {key: {**child, "status": COMPLETE} for key, child in decision.plan.apply.items()}
    assert decision.plan.fetches is None
    return children[workload_key("smollm2")], children


@pytest.mark.parametrize("field", tiered(SINGLE_FIELDS, *TRIED_FIELDS, more=SINGLE_FIELDS))
@settings(max_examples=8, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(spec=SERVING | CACHED, data=st.data())
def test_every_change_of_one_field_gives_the_pods_of_a_new_deployment(
    manifest: Any, field: str, spec: dict[str, Any], data: st.DataObject
) -> None:
    value = data.draw(st.none() | SINGLE_FIELDS[field], label=field)
    before, after = subject(manifest, spec), subject(manifest, changed(spec, field, value))
    assume(is_valid(before) and is_valid(after))
    _, children = carried_out(before, {})

    workload, _ = carried_out(after, children)

    wanted = parse(after)
    assert workload["spec"]["template"] == pod_template(wanted, SETTINGS)
    assert workload["metadata"]["annotations"]["fairlead.dev/spec-hash"] == spec_hash(wanted.spec)


@given(spec=SERVING)
def test_every_mount_has_its_volume(planned: Any, manifest: Any, spec: dict[str, Any]) -> None:
    given = subject(manifest, spec)
    assume(is_valid(given))
    goal = planned(given, settings=SETTINGS)

    volumes = [volume["name"] for volume in goal.pod["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in goal.containers:
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= set(volumes)
