"""The choice between a model on this machine and one to fetch."""

from pathlib import Path

from engine_server.contract.cluster import model_uri
from engine_server.contract.cluster.sources.local_path import LocalPath
from engine_server.contract.cluster.sources.source import Source
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError


def locate(uri: str) -> Path | Source:
    """Return the existing local path that `uri` names, or else the source to fetch it from.

    A path that exists comes before a repository of the same name. Raises ModelSourceError.
    """
    path = Path(uri).expanduser()
    if "://" not in uri and path.exists():
        return path
    try:
        source = model_uri.parse(uri)
    except model_uri.ModelUriError as error:
        if "://" not in uri:
            raise _no_folder(uri, path) from None
        raise UnusableModelError(str(error)) from None
    if source.FETCHED:
        return source
    if isinstance(source, LocalPath):
        raise _no_folder(uri, path)
    raise UnusableModelError(
        f"{uri}: a volume claim exists only in a cluster; on this machine, give the folder's path"
    )


def _no_folder(uri: str, path: Path) -> ModelSourceError:
    return UnusableModelError(
        f"{uri or 'an empty name'}: no folder at {path.absolute()}; "
        "a model on the hub is written org/name or hf://org/name"
    )
