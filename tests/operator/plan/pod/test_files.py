"""The files of an engine."""

from typing import Any

import pytest
from llm_operator.api.rules import is_free_path
from llm_operator.settings import Settings

FILES = [
    {"path": "/templates/chat.jinja", "content": "{{ messages }}"},
    {"path": "/etc/ssl/own.pem", "secret": {"name": "tls", "key": "ca.crt"}},
    {"path": "/templates/tools.jinja", "configMap": {"name": "templates", "key": "tools"}},
]


def config_map(goal: Any) -> dict[str, Any] | None:
    return next((child for key, child in goal.goal.apply.items() if key.kind == "ConfigMap"), None)


def test_contents_are_in_a_config_map(planned: Any, manifest: Any) -> None:
    child = config_map(planned(manifest(engine={"files": FILES})))

    assert child is not None and child["kind"] == "ConfigMap"
    assert child["data"] == {"0": "{{ messages }}"}


def test_every_container_mounts_each_file_read_only_at_its_path(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(engine={"files": FILES}))

    (volume,) = (entry for entry in goal.pod["volumes"] if entry["name"] == "files")
    name = goal.child("ConfigMap")["metadata"]["name"]
    assert volume["projected"]["sources"] == [
        {"configMap": {"name": name, "items": [{"key": "0", "path": "0"}]}},
        {"secret": {"name": "tls", "items": [{"key": "ca.crt", "path": "1"}]}},
        {"configMap": {"name": "templates", "items": [{"key": "tools", "path": "2"}]}},
    ]
    assert [container["name"] for container in goal.containers] == ["model", "engine"]
    for container in goal.containers:
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "files"]
        assert mounts == [
            {"name": "files", "mountPath": file["path"], "subPath": str(index), "readOnly": True}
            for index, file in enumerate(FILES)
        ]


def test_another_content_changes_the_pod_template(planned: Any, manifest: Any) -> None:
    first, second = (
        planned(manifest(engine={"files": [{"path": "/a", "content": text}]})).template
        for text in ("first", "second")
    )

    assert first["spec"]["volumes"] != second["spec"]["volumes"]
    assert first["spec"] | {"volumes": []} == second["spec"] | {"volumes": []}


@pytest.mark.parametrize("files", [[], FILES[1:]])
def test_without_contents_there_is_no_config_map(planned: Any, manifest: Any, files: Any) -> None:
    goal = planned(manifest(engine={"files": files}))

    assert config_map(goal) is None


def test_variables_of_config_maps_and_secrets_reach_every_container(planned: Any, manifest: Any) -> None:
    given = [
        {"prefix": "A_", "secretRef": {"name": "a", "optional": True}},
        {"configMapRef": {"name": "b"}},
    ]

    goal = planned(manifest(engine={"envFrom": given}))

    assert [container["envFrom"] for container in goal.containers] == [given, given]


def test_files_stay_out_of_every_folder_that_the_operator_mounts(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(), settings=Settings(engine_image="e", engine_keys=True))

    for container in goal.containers:
        for mount in container["volumeMounts"]:
            assert not is_free_path(f"{mount['mountPath']}/file"), mount
