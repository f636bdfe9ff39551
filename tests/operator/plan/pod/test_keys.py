"""The keys by which engines recognise the router and the operator."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llm_operator.observed import KeyHashes, Observed, workload_key
from llm_operator.plan.pod.keys import without_router_key
from llm_operator.settings import Settings

WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)
NEXT_RELEASE = Settings(engine_image="engine:2", engine_keys=True, version="9.9.9")
DEPLOYMENT = workload_key("smollm2")
# Specs with the annotations that release 0.2.0 gave to their Deployments, named smollm2 in the namespace default: each
# with keys.enabled and without.
RECORDS_OF_0_2_0 = json.loads((Path(__file__).parents[1] / "records_of_0_2_0.json").read_text())
WITHOUT_KEYS = [case for case in RECORDS_OF_0_2_0 if not case.endswith("with keys")]


def test_engines_get_hashes_of_their_keys_where_keys_are_enabled(planned: Any, manifest: Any) -> None:
    observed = Observed(key_hashes=KeyHashes(("sha256:new", "sha256:old"), ("sha256:admin",)))
    plan = planned(manifest(), observed, WITH_KEYS)

    hashes = plan.child("ConfigMap")
    assert hashes["metadata"]["name"] == "smollm2-keys"
    assert hashes["data"] == {"router": "sha256:new\nsha256:old\n", "admin": "sha256:admin\n"}
    assert {"name": "keys", "configMap": {"name": "smollm2-keys"}} in plan.pod["volumes"]
    assert {"name": "keys", "mountPath": "/etc/fairlead/keys", "readOnly": True} in plan.engine[
        "volumeMounts"
    ]
    assert {
        "--api-key-file=/etc/fairlead/keys/router",
        "--enable-admin",
        "--admin-key-file=/etc/fairlead/keys/admin",
    } <= set(plan.engine["args"])


def test_new_keys_change_no_pod_template(planned: Any, manifest: Any) -> None:
    before = planned(manifest(), Observed(key_hashes=KeyHashes(("sha256:1",), ("sha256:2",))), WITH_KEYS)
    after = planned(manifest(), Observed(key_hashes=KeyHashes(("sha256:3",), ("sha256:4",))), WITH_KEYS)

    assert before.child("ConfigMap") != after.child("ConfigMap")
    assert before.template == after.template


def test_there_are_no_keys_unless_they_are_enabled(planned: Any, manifest: Any) -> None:
    plan = planned(manifest())

    assert not any(key.kind == "ConfigMap" for key in plan.goal.apply)
    assert not any("key" in argument for argument in plan.engine["args"])


def test_engines_ask_for_no_keys_once_these_are_disabled(planned: Any, manifest: Any) -> None:
    with_keys = planned(manifest(), Observed(), WITH_KEYS)
    without = planned(manifest(), with_keys.observed)

    assert not any("key" in argument for argument in without.engine["args"])
    assert without.template == planned(manifest()).template


@pytest.mark.parametrize("case", WITHOUT_KEYS)
def test_disabled_keys_leave_the_rest_of_a_template_of_0_2_0_as_it_is(
    planned: Any, manifest: Any, case: str
) -> None:
    given, old = state_of_0_2_0(planned, manifest, f"{case}, with keys")

    disabled = planned(given, old, Settings(engine_image="engine:2"))

    assert disabled.template == template_of_0_2_0(case)
    assert planned(given, disabled.observed).template == disabled.template


def test_disabled_keys_leave_engines_at_their_model_while_another_one_is_downloaded(
    planned: Any, manifest: Any
) -> None:
    cached = {"uri": "hf://org/old"}
    old = planned(manifest(model=cached), settings=WITH_KEYS)
    new = manifest(model={"uri": "hf://org/new", "cache": {"size": "10Gi"}})

    downloading = planned(new, old.observed)

    assert downloading.goal.fetches
    assert downloading.template == planned(manifest(model=cached)).template


def test_arguments_of_the_spec_stay_when_keys_are_disabled(planned: Any, manifest: Any) -> None:
    with_keys = planned(manifest(), settings=WITH_KEYS)
    # An argument that 0.2.0 accepted, which is one of the operator's too.
    with_keys.engine["args"] += ["--enable-admin", "--seed=1"]

    disabled = without_router_key(with_keys.template, "smollm2")

    without_keys = planned(manifest())
    without_keys.engine["args"] += ["--enable-admin", "--seed=1"]
    assert disabled == without_keys.template


def test_running_engines_keep_their_template_when_keys_are_enabled(planned: Any, manifest: Any) -> None:
    without = planned(manifest())
    with_keys = planned(manifest(), without.observed, WITH_KEYS)

    assert with_keys.template == without.template


def template_of_0_2_0(case: str) -> dict[str, Any]:
    recorded = RECORDS_OF_0_2_0[case]["annotations"]["fairlead.dev/pod-template"]
    return dict(json.loads(recorded))


def state_of_0_2_0(planned: Any, manifest: Any, case: str) -> tuple[dict[str, Any], Observed]:
    """Return the manifest of a case, and the state in which 0.2.0 left its Deployment."""
    record = RECORDS_OF_0_2_0[case]
    template = template_of_0_2_0(case)
    workload = planned(manifest()).child("Deployment")
    metadata = workload["metadata"] | {"annotations": record["annotations"]}
    spec = workload["spec"] | {"template": template}
    children = {DEPLOYMENT: workload | {"metadata": metadata, "spec": spec}}
    return manifest(**record["spec"]), Observed(children=children)


@pytest.mark.parametrize("case", RECORDS_OF_0_2_0)
def test_an_upgrade_from_0_2_0_with_keys_on_keeps_every_template_and_its_record(
    planned: Any, manifest: Any, case: str
) -> None:
    given, old = state_of_0_2_0(planned, manifest, case)

    upgraded = planned(given, old, NEXT_RELEASE)
    scaled = planned(given | {"spec": given["spec"] | {"replicas": 3}}, upgraded.observed, NEXT_RELEASE)

    assert upgraded.template == scaled.template == old.children[DEPLOYMENT]["spec"]["template"]
    # 0.2.0 finds its own record after a rollback.
    annotations = upgraded.child("Deployment")["metadata"]["annotations"]
    assert annotations == RECORDS_OF_0_2_0[case]["annotations"]


@pytest.mark.parametrize("case", WITHOUT_KEYS)
def test_a_rollback_to_an_operator_without_keys_keeps_templates_without_them(
    planned: Any, manifest: Any, case: str
) -> None:
    given, old = state_of_0_2_0(planned, manifest, case)
    upgraded = planned(given, old, NEXT_RELEASE)

    rolled_back = planned(given, upgraded.observed)

    assert rolled_back.template == old.children[DEPLOYMENT]["spec"]["template"]


def test_a_changed_spec_takes_keys_and_a_reverted_one_returns_to_engines_without_them(
    planned: Any, manifest: Any
) -> None:
    given, old = state_of_0_2_0(planned, manifest, "a model alone")
    retained = {
        "metadata": {
            "annotations": old.children[DEPLOYMENT]["metadata"]["annotations"],
            "ownerReferences": [{"uid": "d-1"}],
        }
    }

    changed = planned(manifest(engine={"maxModelLen": 512}), old, NEXT_RELEASE)
    workload = changed.child("Deployment")
    workload["metadata"]["uid"] = "d-1"
    reverted = planned(given, replace(changed.observed, replica_sets=(retained,)), NEXT_RELEASE)

    assert "--api-key-file=/etc/fairlead/keys/router" in changed.engine["args"]
    assert reverted.template == old.children[DEPLOYMENT]["spec"]["template"]


def test_keys_change_no_download(planned: Any, manifest: Any) -> None:
    cached = manifest(model={"uri": "hf://org/name", "cache": {"size": "10Gi"}})

    assert planned(cached, settings=WITH_KEYS).child("Job") == planned(cached).child("Job")
