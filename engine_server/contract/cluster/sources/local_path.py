"""A folder or GGUF file where the model is loaded: a path that begins with /, ./, ../ or ~/."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

from engine_server.contract.cluster.sources.source import Source


@dataclass(frozen=True, slots=True)
class LocalPath(Source):
    """A path on the machine that loads the model. It may be relative or begin with `~`."""

    PATTERN = r"(?P<path>(?:/|\./|\.\./|~/)[^\x00-\x1f\x7f]*)"
    MODEL_FORMS = ADAPTER_FORMS = "or a path that begins with /, ./, ../ or ~/"

    path: str

    @classmethod
    def of(cls, found: Mapping[str, str | None]) -> Self | None:
        return cls(found["path"]) if found["path"] else None

    @property
    def name(self) -> str:
        path = PurePosixPath(self.path)
        return path.stem if path.suffix == ".gguf" else path.name
