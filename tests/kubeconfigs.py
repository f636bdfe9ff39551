"""Kubeconfigs for tests."""

from pathlib import Path
from typing import Any

import yaml


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any], **changed: object) -> Path:
    """Write a kubeconfig with one cluster and one user, with other sections where `changed` has them."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        **changed,
    }
    path.write_text(yaml.safe_dump(config))
    return path
