"""Resolution of an adapter's URI to a local folder as PEFT saves it."""

from functools import partial
from pathlib import Path

from engine_server.contract.model_uri import Bucket, HubRepository
from engine_server.models import bucket, hub, source, store
from engine_server.models.errors import ModelSourceError
from engine_server.models.progress import Progress

CONFIG = "adapter_config.json"


def resolve_adapter(uri: str) -> Path:
    """Return the local folder of the adapter `uri`, fetched if necessary. Raises ModelSourceError."""
    match source.locate(uri):
        case Path() as path:
            return check(path, uri)
        case HubRepository(file=None) as repository:
            return check(hub.download(repository), uri)
        case Bucket() as objects:
            fill = partial(bucket.fill, objects, progress=Progress())
            return store.materialize(bucket.place(objects), str(objects), fill, can_resume=True, check=check)
        case _:
            raise ModelSourceError(
                f"{uri}: an adapter is a folder, a repository of a hub, or a folder of a bucket"
            )


def check(folder: Path, uri: str) -> Path:
    """Return `folder` if it has the configuration of an adapter. Raises ModelSourceError."""
    if not (folder / CONFIG).is_file():
        raise ModelSourceError(f"{uri}: there is no {CONFIG} in {folder}, which an adapter of PEFT has")
    return folder
