"""The plan as a whole: the children of an LLMDeployment, and the pruning of those that it no longer has."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.observed import ChildKey, Observed
from llm_operator.plan.plan import child_keys
from llm_operator.settings import Settings

NEXT_RELEASE = Settings(engine_image="engine:2", version="9.9.9")
LABEL = "fairlead.dev/llmdeployment"
STRAY = ChildKey("v1", "Service", "smollm2-former")


def with_uid(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": {**manifest["metadata"], "uid": "u-1"}}


def existing(**metadata: Any) -> dict[str, Any]:
    owner = {"uid": "u-1", "controller": True}
    defaults = {"name": STRAY.name, "labels": {LABEL: "smollm2"}, "ownerReferences": [owner]}
    return {"apiVersion": STRAY.api_version, "kind": STRAY.kind, "metadata": defaults | metadata}


def test_children_are_keyed_owned_and_labeled(planned: Any, manifest: Any) -> None:
    apply = planned(with_uid(manifest())).goal.apply

    assert list(apply) == [
        ("v1", "ServiceAccount", "smollm2-engine"),
        ("v1", "Service", "smollm2-engine"),
        ("apps/v1", "Deployment", "smollm2-engine"),
    ]
    for child in apply.values():
        metadata = child["metadata"]
        assert metadata["namespace"] == "default"
        assert metadata["labels"][LABEL] == "smollm2"
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u-1", True, True)


def test_every_child_is_among_the_keys_that_are_observed(planned: Any, manifest: Any) -> None:
    assert set(planned(manifest()).goal.apply) == set(child_keys("smollm2"))


def test_deletes_an_owned_child_that_is_not_planned(planned: Any, manifest: Any) -> None:
    goal = planned(with_uid(manifest()), Observed(children={STRAY: existing()})).goal

    assert goal.delete == (STRAY,)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": []}, id="without an owner"),
        pytest.param({"ownerReferences": [{"uid": "u-2", "controller": True}]}, id="of another owner"),
        pytest.param({"labels": {}}, id="without our label"),
        pytest.param({"labels": {LABEL: "other"}}, id="with the label of another LLMDeployment"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, id="being deleted already"),
    ],
)
def test_never_deletes_an_object(planned: Any, manifest: Any, metadata: dict[str, Any]) -> None:
    goal = planned(with_uid(manifest()), Observed(children={STRAY: existing(**metadata)})).goal

    assert goal.delete == ()


# --- properties

WORDS = st.text("abcxyz", min_size=1, max_size=6)
SPECS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"uri": st.sampled_from(["a/b", "hf://a/b@r", "pvc://c/d/e", "pypi://p", "/m"])}
        )
    },
    optional={
        "replicas": st.integers(0, 9),
        "resources": st.fixed_dictionaries(
            {}, optional={"gpu": st.integers(0, 8), "cpu": st.integers(1, 64)}
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxModelLen": st.integers(1, 99999),
                "args": st.lists(WORDS.map("--x{}".format), max_size=4),
                "env": st.dictionaries(WORDS, WORDS, max_size=3).map(
                    lambda pairs: [{"name": name, "value": value} for name, value in pairs.items()]
                ),
            },
        ),
        "rollout": st.fixed_dictionaries({"strategy": st.sampled_from(["surge", "inPlace"])}),
        "podTemplate": st.fixed_dictionaries({"metadata": st.just({"annotations": {"a": "b"}})}),
    },
)


@given(spec=SPECS)
def test_a_plan_that_was_carried_out_plans_itself_again(
    planned: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    first = planned(manifest(**spec))
    again = planned(manifest(**spec), first.observed)

    assert again.goal == first.goal
    assert again.goal.delete == ()
    json.dumps(list(first.goal.apply.values()))


@given(spec=SPECS)
def test_the_next_release_changes_no_deployments_spec(
    planned: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    before = planned(manifest(**spec))
    after = planned(manifest(**spec), before.observed, NEXT_RELEASE)

    assert after.child("Deployment")["spec"] == before.child("Deployment")["spec"]


@given(spec=SPECS)
def test_every_mount_has_its_volume(planned: Any, manifest: Any, spec: dict[str, Any]) -> None:
    goal = planned(manifest(**spec))

    volumes = [volume["name"] for volume in goal.pod["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in goal.containers:
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
