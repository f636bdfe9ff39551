"""LLMDeployments out of YAML files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from engine_server.contract.api import API_VERSION, GROUP, KIND
from llm_operator.replica import Pod, pod
from llm_operator.spec import SpecError, parse


class ManifestError(ValueError):
    """A file cannot be used; the message names file, document and field."""


def read(files: Iterable[Path]) -> list[Pod]:
    """The pods of every LLMDeployment in `files`; other kinds are for a cluster, and left out."""
    pods: dict[tuple[str, str], Pod] = {}
    for file in files:
        ours = [(number, it) for number, it in enumerate(documents(file), start=1) if is_ours(it)]
        if not ours:
            raise ManifestError(f"{file}: there is no {KIND} ({API_VERSION}) in it")
        for number, document in ours:
            try:
                deployment = parse(document)
                key = (deployment.namespace, deployment.name)
                if key in pods:
                    raise SpecError("metadata.name", f"{'/'.join(key)} is there twice")
                pods[key] = pod(deployment)
            except SpecError as error:
                raise ManifestError(f"{file}, document {number}: {error}") from error
    return list(pods.values())


def documents(file: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"{file}: is not YAML: {error}") from error


def is_ours(document: Any) -> bool:
    """Whether it is one of our group, right or wrong; what has no kind at all is meant to be."""
    if not isinstance(document, dict):
        return document is not None
    return str(document.get("apiVersion", GROUP)).startswith(GROUP) or document.get("kind") == KIND
