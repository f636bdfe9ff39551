"""The keys by which engines recognise the router and the operator."""

from dataclasses import replace
from typing import Any

import pytest
from llm_operator.observed import KeyHashes, Observed
from llm_operator.plan.pod.keys import without_router_key
from llm_operator.settings import Settings

WITHOUT_KEYS = Settings(engine_image="engine:1")
WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)
NEXT_RELEASE = Settings(engine_image="engine:2", engine_keys=True, version="9.9.9")
SPECS: dict[str, dict[str, Any]] = {
    "a model alone": {},
    "a claim on a cpu": {
        "model": {"uri": "pvc://claim/some/folder"},
        "resources": {"cpu": 4, "memory": "16Gi"},
    },
    "GPUs and a pod template": {
        "resources": {"gpu": 4, "cpu": "1500m", "memory": "16Gi"},
        "podTemplate": {
            "metadata": {"annotations": {"a": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200"},
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                "containers": [
                    {"name": "engine", "lifecycle": None, "env": [{"name": "X", "value": "\u00e9"}]}
                ],
            },
        },
    },
    "adapters": {"adapters": []},
}


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


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_disabled_keys_leave_the_rest_of_a_template_as_it_is(
    planned: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    given = manifest(**spec)
    with_keys = planned(given, settings=WITH_KEYS)

    disabled = planned(given, with_keys.observed, Settings(engine_image="engine:2"))

    assert disabled.template == planned(given).template != with_keys.template
    assert planned(given, disabled.observed).template == disabled.template


def test_disabled_keys_leave_no_flag_of_the_admin_api_in_a_template_of_an_earlier_operator(
    planned: Any, manifest: Any
) -> None:
    with_keys = planned(manifest(), settings=WITH_KEYS)
    args = with_keys.engine["args"]
    with_keys.engine["args"] = [arg.replace("--admin-host=0", "--admin-host=0.0.0.0") for arg in args]

    disabled = without_router_key(with_keys.template, "smollm2")

    assert disabled == planned(manifest()).template


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
    # The user's come last, and one of them is the operator's too.
    with_keys.engine["args"] += ["--enable-admin", "--seed=1"]

    disabled = without_router_key(with_keys.template, "smollm2")

    without_keys = planned(manifest())
    without_keys.engine["args"] += ["--enable-admin", "--seed=1"]
    assert disabled == without_keys.template


def test_running_engines_keep_their_template_when_keys_are_enabled(planned: Any, manifest: Any) -> None:
    without = planned(manifest())
    with_keys = planned(manifest(), without.observed, WITH_KEYS)

    assert with_keys.template == without.template


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("before", [WITHOUT_KEYS, WITH_KEYS], ids=["keys off", "keys on"])
def test_an_upgrade_with_keys_on_keeps_every_template_and_its_record(
    planned: Any, manifest: Any, before: Settings, spec: dict[str, Any]
) -> None:
    given = manifest(**spec)
    old = planned(given, settings=before)

    upgraded = planned(given, old.observed, NEXT_RELEASE)
    scaled = planned(given | {"spec": given["spec"] | {"replicas": 3}}, upgraded.observed, NEXT_RELEASE)

    assert upgraded.template == scaled.template == old.template
    # The former operator finds its own record after a rollback.
    annotations, own = (each.child("Deployment")["metadata"]["annotations"] for each in (upgraded, old))
    assert annotations == own


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_rollback_to_an_operator_without_keys_keeps_templates_without_them(
    planned: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    given = manifest(**spec)
    old = planned(given, settings=WITHOUT_KEYS)
    upgraded = planned(given, old.observed, NEXT_RELEASE)

    rolled_back = planned(given, upgraded.observed, WITHOUT_KEYS)

    assert rolled_back.template == old.template


def test_a_changed_spec_takes_keys_and_a_reverted_one_returns_to_engines_without_them(
    planned: Any, manifest: Any
) -> None:
    old = planned(manifest(), settings=WITHOUT_KEYS)
    retained = {
        "metadata": {
            "annotations": old.child("Deployment")["metadata"]["annotations"],
            "ownerReferences": [{"uid": "d-1"}],
        }
    }

    changed = planned(manifest(engine={"maxModelLen": 512}), old.observed, NEXT_RELEASE)
    workload = changed.child("Deployment")
    workload["metadata"]["uid"] = "d-1"
    reverted = planned(manifest(), replace(changed.observed, replica_sets=(retained,)), NEXT_RELEASE)

    assert "--api-key-file=/etc/fairlead/keys/router" in changed.engine["args"]
    assert reverted.template == old.template


def test_keys_change_no_download(planned: Any, manifest: Any) -> None:
    cached = manifest(model={"uri": "hf://org/name", "cache": {"size": "10Gi"}})

    assert planned(cached, settings=WITH_KEYS).child("Job") == planned(cached).child("Job")
