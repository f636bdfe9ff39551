"""pvc://CLAIM[/PATH]: a PersistentVolumeClaim, or a folder on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from engine_server.contract.cluster.sources.source import Source

_NO_DOT = r"[^.\x00-\x1f\x7f]"


@dataclass(frozen=True, slots=True)
class VolumeClaim(Source):
    """A folder inside the volume of a PersistentVolumeClaim; the whole volume if the path is empty."""

    PATTERN = (
        r"pvc://(?P<claim>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)"
        rf"(?:/(?P<folder>(?:(?:[^./\x00-\x1f\x7f]|\.{_NO_DOT})(?:{_NO_DOT}|\.{_NO_DOT})*\.?)?))?"
    )
    MODEL_FORMS = ADAPTER_FORMS = "pvc://CLAIM[/PATH]"
    SCHEME = "pvc"
    EXPECTED = (
        "a claim, or a claim and a path without .., is expected, as in pvc://models or pvc://models/llama"
    )

    claim: str
    path: str = ""

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        claim = found["claim"]
        return cls(claim, (found["folder"] or "").rstrip("/")) if claim else None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or self.claim
