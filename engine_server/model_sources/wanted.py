"""How a model is wanted, for what fetches it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_server.model_sources import hub_cache, record, store
from engine_server.model_sources.gguf import conversion as gguf
from engine_server.model_sources.progress import Progress
from engine_server.model_sources.record import Checksums


class Wanted(NamedTuple):
    """How a model is wanted: where, in which form, and for which tokenizer. See `resolve`."""

    # None: anywhere in the cache.
    into: Path | None
    load_format: str
    own_tokenizer: bool
    progress: Progress

    @property
    def dense(self) -> bool:
        return self.load_format == "dequantized"

    @property
    def takes_gguf(self) -> bool:
        return self.load_format in ("auto", "gguf", "dequantized")

    def materialize(
        self,
        place: Path,
        uri: str,
        fill: store.Fill,
        can_resume: bool = False,
        renewal: store.Renewal | None = None,
    ) -> Path:
        """Return `into`, or else `place`, once it holds the model; see `store.materialize`."""
        is_hashed = record.all_but_weights if self.into is None else record.every_file
        return store.materialize(
            self.into or place,
            uri,
            fill,
            self.progress,
            can_resume,
            is_hashed=is_hashed,
            renewal=renewal,
        )

    def convert(self, file: Path) -> Path:
        """Return the folder of a GGUF file that is here, converted once."""
        return Conversion(lambda: file, self).materialize(gguf.place(file, self.dense), str(file))


class Conversion(NamedTuple):
    """The conversion of a GGUF file, which is downloaded only if it is needed."""

    file: Callable[[], Path]
    wanted: Wanted

    def materialize(self, place: Path, uri: str) -> Path:
        renewal = store.Renewal(
            partial(gguf.is_current, own_tokenizer=self.wanted.own_tokenizer), self._renew
        )
        return self.wanted.materialize(place, uri, self._fill, renewal=renewal)

    def _fill(self, place: Path) -> Checksums:
        file = self.file()
        written = gguf.convert(file, place, self.wanted.dense, self.wanted.own_tokenizer)
        return msgspec.structs.replace(written, commit=hub_cache.commit_of(file))

    def _renew(self, converted: Path, place: Path) -> Checksums:
        return gguf.renew(self.file(), converted, place, self.wanted.own_tokenizer)
