"""LLMDeployments from YAML files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse

from engine_server.contract.api import API_VERSION, GROUP, KIND
from llm_local.replica import Pod, pod


class ManifestError(ValueError):
    """A file that cannot be used; the message names file, document and field."""


def read(files: Iterable[Path]) -> list[Pod]:
    """Return the pod of every LLMDeployment in `files`; other kinds are left out. Raises ManifestError."""
    pods: dict[tuple[str, str], Pod] = {}
    for file in files:
        ours = [(number, it) for number, it in enumerate(documents(file), start=1) if is_ours(it)]
        if not ours:
            raise ManifestError(f"{file}: there is no {KIND} ({API_VERSION}) in it")
        for number, document in ours:
            try:
                deployment = parse(document)
                if deployment.key in pods:
                    raise SpecError("metadata.name", f"{deployment.key} is there twice")
                pods[deployment.key] = pod(deployment)
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
    """Return True for documents of our group or kind, valid or not, and for documents without a kind."""
    if not isinstance(document, dict):
        return document is not None
    return str(document.get("apiVersion", GROUP)).startswith(GROUP) or document.get("kind") == KIND
