"""The Kubernetes API of LLMDeployments: group, version, kind, paths, and the key of an object."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

GROUP = "fairlead.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SHORT_NAME = "llmd"
CRD_NAME = f"{PLURAL}.{GROUP}"

# Leaves room for the suffixes of children within the 63 characters of a label.
MAX_NAME_LENGTH = 52
DEFAULT_NAMESPACE = "default"


class Key(NamedTuple):
    """The identity of an LLMDeployment in a cluster."""

    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """Return the key of a namespaced object as the API server sends it."""
        return cls(manifest["metadata"]["namespace"], manifest["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def collection_path(namespace: str | None = None) -> str:
    """Return the API path of all LLMDeployments of `namespace`, or of the whole cluster if it is None."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_VERSION}{scope}/{PLURAL}"
