"""YAML files: errors name the file, the document and the field, before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from llm_local import command
from llm_local.manifests import ManifestError, read


def refused(good: dict[str, Any], text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Run `fairlead up` with a good file and one with `text`; return its errors."""
    files = folder / "good.yaml", folder / "file.yaml"
    files[0].write_text(json.dumps(good))
    files[1].write_text(text)
    assert command.main([*map(str, files), "--port=0"]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "file.yaml: is not YAML"),
        ("", "file.yaml: there is no LLMDeployment"),
        (json.dumps({"apiVersion": "v1", "kind": "Secret"}), "file.yaml: there is no LLMDeployment"),
        (
            "just words",
            "file.yaml, document 1: the manifest: expected `object`, got `str`; it is 'just words'",
        ),
    ],
)
def test_refuses_a_file_without_a_manifest(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    assert complaint in refused(manifest("good"), text, tmp_path, capfd)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"replicas": -1}, "file.yaml, document 1: spec.replicas"),
        ({"wrong": 1}, "file.yaml, document 1: spec.wrong"),
        ({"model": {"uri": "pvc://claim/path"}}, "pvc://claim/path is a volume claim"),
        ({"engine": {"env": [{"name": "K", "valueFrom": {}}]}}, "spec.engine.env: K has a valueFrom"),
    ],
)
def test_refuses_a_wrong_manifest_by_document_and_field(
    manifest: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    spec: dict[str, Any],
    complaint: str,
) -> None:
    assert complaint in refused(manifest("good"), json.dumps(manifest(**spec)), tmp_path, capfd)


def test_refuses_a_name_that_is_there_twice(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "---\n".join([json.dumps(manifest()) + "\n"] * 2)

    complaint = refused(manifest("good"), text, tmp_path, capfd)

    assert "file.yaml, document 2: metadata.name: default/tiny is there twice" in complaint


def test_refuses_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml: cannot be read: No such file"):
        read([tmp_path / "none.yaml"])
