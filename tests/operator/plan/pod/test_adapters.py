"""Engines with adapters: their list, their flags, and what they need to read it."""

from typing import Any

import msgspec
import pytest
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.api.spec_hash import spec_hash
from llm_operator.observed import KeyHashes, Observed
from llm_operator.plan.decide import decide
from llm_operator.plan.plan import plan
from llm_operator.plan.pod.adapters import of_other_models
from llm_operator.plan.pod.template_record import TemplateRecord
from llm_operator.settings import Settings

from engine_server.contract.cluster.adapters import MODEL_VARIABLE, WantedAdapters

SETTINGS = Settings(engine_image="engine:1")
FRENCH = {"name": "french", "uri": "hf://org/french"}
SQL = {"name": "sql", "uri": "/mnt/sql"}
LISTS: list[list[dict[str, str]]] = [[], [FRENCH], [FRENCH, SQL], [{**FRENCH, "uri": "s3://bucket/french"}]]


def child(goal: Any, name: str) -> dict[str, Any]:
    (found,) = (child for key, child in goal.goal.apply.items() if key.name == name)
    return dict(found)


def listed(goal: Any) -> dict[str, str]:
    """Return the adapters of the ConfigMap, URIs by name."""
    content = child(goal, "smollm2-adapters")["data"]["adapters.json"]
    return msgspec.json.decode(content, type=WantedAdapters).by_name()


def test_adapters_are_in_a_config_map_that_engines_mount(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(adapters=[FRENCH, SQL]))

    assert listed(goal) == {"french": "hf://org/french", "sql": "/mnt/sql"}
    assert {"name": "adapters", "configMap": {"name": "smollm2-adapters"}} in goal.pod["volumes"]
    mount = {"name": "adapters", "mountPath": "/etc/fairlead/adapters", "readOnly": True}
    assert mount in goal.engine["volumeMounts"]
    assert {
        "--enable-lora", "--adapters-file=/etc/fairlead/adapters/adapters.json", "--max-loras=8", "--max-cpu-loras=32"
    } <= set(goal.engine["args"])  # fmt: skip


def test_the_list_names_its_model_and_engines_know_theirs(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(adapters=[FRENCH]))

    content = child(goal, "smollm2-adapters")["data"]["adapters.json"]
    assert msgspec.json.decode(content, type=WantedAdapters).model == "hf://org/name"
    assert {"name": MODEL_VARIABLE, "value": "hf://org/name"} in goal.engine["env"]


def test_the_model_of_a_list_cannot_be_another(planned: Any, manifest: Any) -> None:
    env = [{"name": MODEL_VARIABLE, "value": "hf://org/other"}]

    with pytest.raises(SpecError, match=MODEL_VARIABLE):
        planned(manifest(adapters=[FRENCH], engine={"env": env}))


@pytest.mark.parametrize("adapters", LISTS)
def test_the_content_of_the_list_changes_no_pod(planned: Any, manifest: Any, adapters: Any) -> None:
    secret = {"uri": "hf://org/name", "secretRef": {"name": "hub"}}
    first, second = manifest(model=secret, adapters=[SQL]), manifest(model=secret, adapters=adapters)

    assert planned(first).template == planned(second).template
    assert spec_hash(parse(first).spec) == spec_hash(parse(second).spec)


def test_the_first_list_changes_the_pods_even_if_it_is_empty(planned: Any, manifest: Any) -> None:
    without, empty = manifest(), manifest(adapters=[])

    assert planned(without).template != planned(empty).template
    assert spec_hash(parse(without).spec) != spec_hash(parse(empty).spec)


def test_without_the_field_there_is_nothing_of_adapters(planned: Any, manifest: Any) -> None:
    goal = planned(manifest())

    assert not [key for key in goal.goal.apply if key.kind == "ConfigMap"]
    assert not any("lora" in argument or "admin" in argument for argument in goal.engine["args"])


@pytest.mark.parametrize("given", ["--max-loras=40", "--max_cpu_loras=64", "--max-loras"])
def test_numbers_of_the_user_replace_both_defaults(planned: Any, manifest: Any, given: str) -> None:
    arguments = planned(manifest(adapters=[], engine={"args": [given, "--seed=1"]})).engine["args"]

    assert [word for word in arguments if "loras" in word] == [given]


def test_adapters_on_the_claim_of_the_model_are_beside_it(planned: Any, manifest: Any) -> None:
    model = {"uri": "pvc://models/smollm2"}
    adapters = [
        {"name": "french", "uri": "pvc://models/adapters/french"},
        {"name": "all", "uri": "pvc://models"},
    ]
    goal = planned(manifest(model=model, adapters=adapters))

    assert listed(goal) == {"french": "/models/claim/adapters/french", "all": "/models/claim"}
    mounts = [mount for mount in goal.engine["volumeMounts"] if mount["name"] == "models"]
    assert mounts == [
        {"name": "models", "mountPath": "/models/model", "subPath": "smollm2", "readOnly": True},
        {"name": "models", "mountPath": "/models/claim", "readOnly": True},
    ]


def test_adapters_are_fetched_with_the_credentials_of_the_model(
    planned: Any, manifest: Any, environment: Any
) -> None:
    model = {"uri": "hf://org/name", "secretRef": {"name": "hub"}}
    variables = environment(planned(manifest(model=model, adapters=[])).engine)

    assert variables["HF_TOKEN"]["secretKeyRef"] == {"name": "hub", "key": "token", "optional": True}
    assert variables["AWS_ACCESS_KEY_ID"]["secretKeyRef"]["name"] == "hub"
    assert variables["HF_HOME"].startswith("/cache/")
    assert "HF_TOKEN" not in environment(planned(manifest(model=model)).engine)


def test_only_the_admin_api_of_engines_asks_for_a_key_where_keys_are_off(planned: Any, manifest: Any) -> None:
    observed = Observed(key_hashes=KeyHashes(admin=("sha256:1",)))
    goal = planned(manifest(adapters=[]), observed)

    assert child(goal, "smollm2-keys")["data"] == {"admin": "sha256:1\n"}
    assert {"--enable-admin", "--admin-key-file=/etc/fairlead/keys/admin"} <= set(goal.engine["args"])
    assert not any("api-key-file" in argument for argument in goal.engine["args"])


def test_engines_with_adapters_keep_their_template_when_they_are_planned_again(
    planned: Any, manifest: Any
) -> None:
    before = planned(manifest(adapters=[FRENCH]))

    assert planned(manifest(adapters=[SQL]), before.observed).template == before.template


def test_adapters_are_refused_without_an_admin_key(manifest: Any) -> None:
    subject = manifest(adapters=[FRENCH])
    subject["metadata"] |= {"uid": "u-1", "generation": 1}

    decision = decide(Observed(subject=subject), SETTINGS)

    assert decision.refusal is not None and decision.refusal.reason == "NoAdminKey"
    assert not decision.plan.apply
    assert plan(parse(subject), Observed(), SETTINGS).apply


def test_the_list_in_force_is_the_one_that_was_applied(planned: Any, manifest: Any) -> None:
    subject = manifest(adapters=[FRENCH])
    children = planned(subject).goal.apply

    in_force = Observed(subject=subject, children=children).adapters_in_force

    assert in_force is not None and in_force.by_name() == {"french": "hf://org/french"}
    assert Observed(subject=subject).adapters_in_force is None


def replica_set(name: str, **template: Any) -> dict[str, Any]:
    """Return a ReplicaSet of the pods that it owns, with the record of their template."""
    record = TemplateRecord({"spec": template}, "v2-1")
    return {"metadata": {"name": name, "uid": f"uid of {name}", "annotations": record.annotations()}}


def test_replicas_of_another_model_are_known_by_their_template() -> None:
    named = {"name": "engine", "env": [{"name": MODEL_VARIABLE, "value": "hf://org/old"}]}
    present = {"name": "engine", "env": [{"name": MODEL_VARIABLE, "value": "hf://org/new"}]}
    sets = (
        replica_set("a1", containers=[named]),
        replica_set("b2", containers=[present]),
        # Rendered for a spec without adapters.
        replica_set("c3", containers=[{"name": "engine"}]),
    )
    pods = tuple(
        {
            "metadata": {
                "name": each["metadata"]["name"],
                "ownerReferences": [{"uid": each["metadata"]["uid"]}],
            }
        }
        for each in sets
    )
    state = Observed(pods=pods, replica_sets=sets)

    assert of_other_models(WantedAdapters([], "hf://org/new"), state) == {"a1"}
    # A list that names no model is for any.
    assert of_other_models(WantedAdapters([]), state) == set()
