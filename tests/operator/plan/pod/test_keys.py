"""The keys by which engines recognise the router and the operator."""

from typing import Any

from llm_operator.observed import KeyHashes, Observed
from llm_operator.settings import Settings

WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)


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


def test_running_engines_keep_their_template_when_keys_are_enabled(planned: Any, manifest: Any) -> None:
    without = planned(manifest())
    with_keys = planned(manifest(), without.observed, WITH_KEYS)

    assert with_keys.template == without.template
