"""Resolution of an adapter's URI to a local folder as PEFT saves it."""

from pathlib import Path

from engine_server.model_sources import source
from engine_server.model_sources.errors import UnusableModelError
from engine_server.model_sources.fetchers import FETCHERS
from engine_server.model_sources.folder import ADAPTER_CONFIG
from engine_server.model_sources.links import check_links, files_at


def resolve_adapter(uri: str) -> Path:
    """Return the local folder of the adapter `uri`, fetched if necessary. Raises ModelSourceError."""
    found = source.locate(uri)
    if isinstance(found, Path):
        check_links(files_at(found), uri)
        return check(found, uri)
    return FETCHERS[type(found)].fetch_adapter(found, check)


def check(folder: Path, uri: str) -> Path:
    """Return `folder` if it has the configuration of an adapter. Raises ModelSourceError."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise UnusableModelError(
            f"{uri}: there is no {ADAPTER_CONFIG} in {folder}, which an adapter of PEFT has"
        )
    return folder
