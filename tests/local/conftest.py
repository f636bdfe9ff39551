"""Manifests for `fairlead up`."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def manifest() -> Callable[..., dict[str, Any]]:
    """Return a function that makes an LLMDeployment; keywords are fields of its spec."""

    def manifest(name: str = "tiny", **spec: object) -> dict[str, Any]:
        return {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name},
            "spec": {"model": {"uri": f"pypi://{name}"}, **spec},
        }

    return manifest
