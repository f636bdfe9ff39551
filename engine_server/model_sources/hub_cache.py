"""The cache of the hub's own library, which has a folder for each commit."""

import re
from pathlib import Path

from engine_server.contract.cluster.sources.hub import COMMIT


def commit_of(path: Path) -> str | None:
    """Return the commit of a file or folder in the cache; None elsewhere."""
    names = [folder.name for folder in (path, *path.parents) if folder.parent.name == "snapshots"]
    return next((name for name in names if re.fullmatch(COMMIT, name)), None)
