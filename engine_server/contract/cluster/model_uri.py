"""The URIs of models and adapters: which source has them."""

import re

from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.contract.cluster.sources.claim import VolumeClaim
from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.contract.cluster.sources.local_path import LocalPath
from engine_server.contract.cluster.sources.package import Package
from engine_server.contract.cluster.sources.source import Source

SOURCES: tuple[type[Source], ...] = (HubRepository, Package, VolumeClaim, Bucket, LocalPath)
FETCHED = tuple(source for source in SOURCES if source.FETCHED)

PATTERN = "|".join(source.PATTERN for source in SOURCES)
MODEL_FORMS = ", ".join(source.MODEL_FORMS for source in SOURCES)
ADAPTER_FORMS = ", ".join(source.ADAPTER_FORMS for source in SOURCES)
# For command lines: what is fetched.
EXAMPLES = ", ".join(source.MODEL_FORMS for source in FETCHED).lower()
# The beginnings of URIs whose models are fetched.
FETCHED_PATTERN = f"^({'|'.join(source.FETCHED for source in FETCHED)})"

_GRAMMAR = re.compile(PATTERN)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)
_EXPECTED = {source.SCHEME: source.EXPECTED for source in SOURCES}


class ModelUriError(ValueError):
    """A URI outside the grammar; the message names the URI and what is expected."""


def parse(uri: str) -> Source:
    """Return the source that `uri` names, without I/O. Raises ModelUriError.

    ORG/NAME is a repository here; a caller that prefers an existing folder of that name checks for it first.
    """
    match = _GRAMMAR.fullmatch(uri)
    if match is None:
        raise ModelUriError(f"{uri}: {_expectation(uri)}")
    return next(found for source in SOURCES if (found := source.of(match.groupdict())) is not None)


def is_valid(uri: str) -> bool:
    return _GRAMMAR.fullmatch(uri) is not None


def _expectation(uri: str) -> str:
    scheme = _SCHEME.fullmatch(uri)
    if scheme is None:
        return f"a model is {MODEL_FORMS}"
    if scheme[1] in _EXPECTED:
        return f"after {scheme[1]}:// {_EXPECTED[scheme[1]]}"
    return f"there is no model source {scheme[1]}://; a model is {MODEL_FORMS}"
