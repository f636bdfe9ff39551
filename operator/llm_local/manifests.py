"""The LLMDeployments to run: from YAML files, folders of them and standard input, or written for a model."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse

from engine_server.contract.cluster.api import API_VERSION, GROUP, KIND
from llm_local.model_manifest import ModelError, manifest_of
from llm_local.replica import Pod, pod

STDIN = "-"
SUFFIXES = (".yaml", ".yml")
# A folder with this file is a model, whatever else is in it.
MODEL_CONFIG = "config.json"


class ManifestError(ValueError):
    """A manifest or model that cannot be used; the message names file, document and field."""


class Manifest(NamedTuple):
    """A document that may be an LLMDeployment, and its place for messages."""

    place: str
    content: Any


def read(words: Iterable[str], replicas: int | None = None) -> list[Manifest]:
    """Return the LLMDeployments that the words of a command line name; other kinds are left out.

    A word is a YAML file, a folder with such files, `-` for standard input, or else a model. replicas: replaces the
    number of each. Raises ManifestError.
    """
    return [with_replicas(manifest, replicas) for word in words for manifest in named_by(word)]


def named_by(word: str) -> list[Manifest]:
    files = manifest_files(Path(word))
    if word != STDIN and not files:
        try:
            return [Manifest(word, manifest_of(word))]
        except ModelError as error:
            hint = (
                f"manifests are files or folders with files that end in {' or '.join(SUFFIXES)}, or {STDIN}"
            )
            raise ManifestError(f"{error}; {hint}") from error
    found = documents("standard input", sys.stdin.buffer.read) if word == STDIN else in_files(files)
    ours = [manifest for manifest in found if is_ours(manifest.content)]
    if not ours:
        raise ManifestError(f"{word}: there is no {KIND} ({API_VERSION}) in it")
    return ours


def manifest_files(path: Path) -> list[Path]:
    """Return the file itself, or those of a folder, if they are YAML by their names."""
    if path.is_dir():
        is_model = (path / MODEL_CONFIG).exists()
        return [] if is_model else sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    return [path] if path.suffix in SUFFIXES else []


def in_files(files: Iterable[Path]) -> Iterator[Manifest]:
    for file in files:
        yield from documents(str(file), file.read_bytes)


def documents(name: str, content: Any) -> list[Manifest]:
    """Return the documents of the YAML that `content` reads. Raises ManifestError."""
    try:
        found = list(yaml.safe_load_all(content()))
    except OSError as error:
        raise ManifestError(f"{name}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{name}: is not YAML: {error}") from error
    return [Manifest(f"{name}, document {number}", each) for number, each in enumerate(found, start=1)]


def is_ours(document: Any) -> bool:
    """Return True for documents of our group or kind, valid or not, and for documents without a kind."""
    if not isinstance(document, dict):
        return document is not None
    return str(document.get("apiVersion", GROUP)).startswith(GROUP) or document.get("kind") == KIND


def with_replicas(manifest: Manifest, replicas: int | None) -> Manifest:
    content = manifest.content
    if replicas is None or not isinstance(content, dict) or not isinstance(content.get("spec"), dict):
        return manifest
    return manifest._replace(content={**content, "spec": {**content["spec"], "replicas": replicas}})


def pods(manifests: Iterable[Manifest]) -> list[Pod]:
    """Return the pod of every LLMDeployment. Raises ManifestError."""
    found: dict[tuple[str, str], Pod] = {}
    for manifest in manifests:
        try:
            deployment = parse(manifest.content)
            if deployment.key in found:
                raise SpecError("metadata.name", f"{deployment.key} is defined twice")
            found[deployment.key] = pod(deployment)
        except SpecError as error:
            raise ManifestError(f"{manifest.place}: {error}") from error
    return list(found.values())
