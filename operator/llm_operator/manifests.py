"""LLMDeployments out of YAML files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from llm_operator.names import API_VERSION, GROUP, KIND
from llm_operator.spec import LLMDeployment, SpecError, parse


class ManifestError(ValueError):
    """A file cannot be used; the message names file, document and field."""


def read(files: Iterable[Path]) -> list[LLMDeployment]:
    """Every LLMDeployment in `files`; documents of other kinds are for a cluster, and left out."""
    deployments: dict[tuple[str, str], LLMDeployment] = {}
    for file in files:
        found = [(number, _parsed(file, number, it)) for number, it in _documents(file) if _is_ours(it)]
        if not found:
            raise ManifestError(f"{file}: there is no {KIND} ({API_VERSION}) in it")
        for number, deployment in found:
            key = (deployment.namespace, deployment.name)
            if key in deployments:
                raise ManifestError(f"{file}, document {number}: {'/'.join(key)} is there twice")
            deployments[key] = deployment
    return list(deployments.values())


def _documents(file: Path) -> list[tuple[int, Any]]:
    try:
        text = file.read_text()
        documents = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{file}: is not YAML: {error}") from error
    return [(number, it) for number, it in enumerate(documents, start=1) if it is not None]


def _is_ours(document: Any) -> bool:
    """Whether it is one of our group, right or wrong; what has no kind at all is meant to be."""
    if not isinstance(document, dict):
        return True
    return str(document.get("apiVersion", GROUP)).startswith(GROUP) or document.get("kind") == KIND


def _parsed(file: Path, number: int, document: Any) -> LLMDeployment:
    try:
        return parse(document)
    except SpecError as error:
        raise ManifestError(f"{file}, document {number}: {error}") from error
