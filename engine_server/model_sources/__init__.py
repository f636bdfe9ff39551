"""Resolution of a model's URI to a local folder with config.json, safetensors and tokenizer."""

import shutil
from functools import partial
from pathlib import Path

from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.model_sources import folder, hub_cache, record, source
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError
from engine_server.model_sources.fetchers import FETCHERS
from engine_server.model_sources.gguf import conversion as gguf
from engine_server.model_sources.links import check_links, files_at
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.wanted import Wanted

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
    wanted = Wanted(into, load_format, own_tokenizer, progress or Progress())
    found = source.locate(uri)
    if isinstance(found, Path):
        return _local(found, uri, wanted)
    is_file = isinstance(found, HubRepository) and found.file is not None
    if load_format == "gguf" and not is_file:
        raise UnusableModelError(
            f"{uri}: load_format is gguf, which takes a local file or folder, or a hub's file"
        )
    return FETCHERS[type(found)].fetch_model(found, wanted)


def _local(path: Path, uri: str, wanted: Wanted) -> Path:
    """Return the folder of a model that is on this machine."""
    check_links(files_at(path), uri)
    if wanted.takes_gguf:
        file = gguf.find(path, wanted=wanted.load_format == "gguf")
        if file is not None:
            return wanted.convert(file)
    folder.check(path, uri, weights=wanted.load_format != "dummy")
    check_links(folder.weight_files(path), uri)
    record.verify(path, uri)
    gguf.warn_if_outdated(path)
    return path if wanted.into is None else wanted.materialize(wanted.into, uri, partial(_copy, path))


def commit_of(folder: Path) -> str | None:
    """Return the commit of the hub's repository that a resolved folder has; None if it is not known."""
    return record.commit_in(folder) or hub_cache.commit_of(folder)


def _copy(path: Path, place: Path) -> None:
    shutil.copytree(path, place, dirs_exist_ok=True)
