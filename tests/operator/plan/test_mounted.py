"""ConfigMaps that pods mount outlive the spec that made them."""

from dataclasses import replace
from typing import Any

from llm_operator.observed import ChildKey, KeyHashes, Observed, workload_key
from llm_operator.plan.pod.template import typed
from llm_operator.settings import Settings

CACHED = {"uri": "hf://org/name", "cache": {"size": "10Gi"}}
FILES = {"files": [{"path": "/templates/chat.jinja", "content": "first"}]}
HASHES = KeyHashes(("sha256:router",), ("sha256:admin",))
WITH_KEYS = Settings(engine_image="engine:1", engine_keys=True)
DEPLOYMENT = workload_key("smollm2")


def with_uid(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest | {"metadata": {**manifest["metadata"], "uid": "u-1"}}


def config_maps(goal: Any) -> set[str]:
    return {key.name for key in goal.goal.apply if key.kind == "ConfigMap"}


def replica_set(workload: dict[str, Any], replicas: int, counted: int) -> dict[str, Any]:
    """Return a ReplicaSet of the Deployment's template as the store keeps it, with replicas that exist."""
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    return {
        "metadata": {"name": "smollm2-engine-1", "uid": "rs-1", "ownerReferences": []},
        "spec": {"replicas": replicas, "template": {"spec": {"volumes": volumes}}},
        "status": {"replicas": counted},
    }


def test_files_that_running_replicas_mount_outlive_a_spec_without_them(planned: Any, manifest: Any) -> None:
    first = planned(with_uid(manifest(engine=FILES)))
    (name,) = config_maps(first)
    key = ChildKey("v1", "ConfigMap", name)
    without = with_uid(manifest(engine={"image": "no-such-image"}))
    rolling = planned(without, first.observed)
    children = {**rolling.observed.children, key: first.goal.apply[key]}

    plans = [
        planned(
            without,
            Observed(children=children, replica_sets=replica_sets),
        ).goal
        for replica_sets in (
            *((replica_set(first.child("Deployment"), *counts),) for counts in ((1, 1), (0, 1), (0, 0))),
            (),
        )
    ]

    # The Deployment itself still has the first template then.
    assert rolling.goal.delete == ()
    # A rollback returns to the template of a ReplicaSet that Kubernetes retains without replicas.
    assert [plan.delete for plan in plans] == [(), (), (), (key,)]
    assert all(key not in plan.apply for plan in plans)


def test_config_maps_stay_while_former_replicas_are_counted_whose_replica_set_is_not_known(
    planned: Any, manifest: Any
) -> None:
    first = planned(with_uid(manifest(engine=FILES)))
    (name,) = config_maps(first)
    key = ChildKey("v1", "ConfigMap", name)
    without = with_uid(manifest(engine={"image": "no-such-image"}))
    children = {**planned(without, first.observed).observed.children, key: first.goal.apply[key]}
    rolling = children[DEPLOYMENT] | {"status": {"replicas": 2, "updatedReplicas": 1}}

    assert planned(without, Observed(children=children | {DEPLOYMENT: rolling})).goal.delete == ()
    assert planned(without, Observed(children=children)).goal.delete == (key,)


def test_volumes_without_sources_hide_no_config_map(planned: Any, manifest: Any) -> None:
    """As the API server writes them."""
    volumes = [{"name": "empty", "projected": {"sources": None}}, {"name": "a", "configMap": {"name": "b"}}]
    assert typed({"spec": {"volumes": volumes}}).config_maps == {"b"}


def test_a_download_deletes_no_config_map_that_the_engines_in_force_mount(
    planned: Any, manifest: Any
) -> None:
    first = with_uid(manifest(engine=FILES, adapters=[{"name": "pirate", "uri": "a/b"}]))
    serving = planned(first, Observed(key_hashes=HASHES), WITH_KEYS)
    before = config_maps(serving)

    # The next model has neither files nor adapters, and keys are turned off.
    downloading = planned(with_uid(manifest(model=CACHED)), replace(serving.observed, key_hashes=HASHES))

    assert {name.partition("-")[2].partition("-")[0] for name in before} == {"files", "keys", "adapters"}
    assert downloading.goal.fetches is not None
    assert downloading.goal.delete == ()


def test_each_content_has_an_immutable_config_map_of_its_own(planned: Any, manifest: Any) -> None:
    first, again, other = (
        planned(manifest(engine={"files": [{"path": path, "content": text}]})).child("ConfigMap")
        for path, text in (("/a", "first"), ("/b", "first"), ("/a", "other"))
    )

    assert first == again
    assert first["immutable"] and first["metadata"]["name"].startswith("smollm2-files-")
    assert first["metadata"]["name"] != other["metadata"]["name"]


def test_a_reverted_spec_mounts_its_files_again(planned: Any, manifest: Any) -> None:
    first = planned(with_uid(manifest(engine=FILES)))
    second = planned(with_uid(manifest()), first.observed)
    workload = second.child("Deployment")
    workload["metadata"]["uid"] = "d-1"
    retained = replica_set(first.child("Deployment"), 0, 0)
    retained["metadata"] |= {
        "annotations": first.child("Deployment")["metadata"]["annotations"],
        "ownerReferences": [{"uid": "d-1"}],
    }

    reverted = planned(with_uid(manifest(engine=FILES)), replace(second.observed, replica_sets=(retained,)))

    assert reverted.template == first.template
    assert reverted.child("ConfigMap") == first.child("ConfigMap")
