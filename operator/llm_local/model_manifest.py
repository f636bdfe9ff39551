"""The LLMDeployment of a model that a command line names without a manifest."""

import re
from pathlib import Path
from typing import Any

from engine_server.contract.cluster import model_uri
from engine_server.contract.cluster.api import API_VERSION, KIND
from engine_server.contract.cluster.sources.claim import VolumeClaim
from engine_server.contract.cluster.sources.local_path import LocalPath

# The most characters of a deployment's name.
LONGEST_NAME = 52


class ModelError(ValueError):
    """A word that names no model; the message says what is expected."""


def manifest_of(model: str) -> dict[str, Any]:
    """Return the manifest that serves `model`: a URI, or a path that exists here. Raises ModelError."""
    path = Path(model).expanduser()
    # As for an engine, a path that exists comes before a repository of the same name.
    uri = str(path.absolute()) if "://" not in model and path.exists() else model
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": deployment_name(source_name(uri))},
        "spec": {"model": {"uri": uri}},
    }


def source_name(uri: str) -> str:
    """Return the last name in a model's URI. Raises ModelError for a URI that cannot be used."""
    try:
        source = model_uri.parse(uri)
    except model_uri.ModelUriError as error:
        raise ModelError(str(error)) from error
    if isinstance(source, VolumeClaim):
        raise ModelError(f"{uri}: only a cluster has volume claims; give the folder's path")
    if isinstance(source, LocalPath) and not Path(source.path).expanduser().exists():
        raise ModelError(f"{source.path}: there is no such file or folder")
    return source.name


def deployment_name(name: str) -> str:
    """Return `name` as a DNS label of a deployment: its letters in lower case, its digits, and dashes."""
    label = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"model-{label}".strip("-")
    return label[:LONGEST_NAME].strip("-")
