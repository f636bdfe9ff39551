"""The start of the process for pictures, while the core loads the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine_server.config import ModelConfig
from engine_server.config.start_facts import StartFacts
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.pictures.pictures import Pictures


@dataclass(frozen=True, slots=True)
class StartedPictures:
    """The processing of pictures, or the reason why there is none."""

    pictures: Pictures | None = None
    refusal: str = ""

    def settled(self, facts: StartFacts) -> tuple[Pictures | None, StartFacts]:
        """Return what stays once the core is ready, which may refuse pictures, and the facts with the reason."""
        if facts.refuses_pictures and self.pictures is not None:
            self.pictures.close()
        if facts.refuses_pictures:
            return None, facts
        return self.pictures, msgspec.structs.replace(facts, refuses_pictures=self.refusal)


def start_pictures(config: ModelConfig) -> StartedPictures:
    """Start the process for a model's pictures, unless the model takes none; it takes seconds."""
    if config.refuses_pictures:
        return StartedPictures(refusal=config.refuses_pictures)
    if config.skip_tokenizer_init:
        return StartedPictures(refusal="the engine was made with skip_tokenizer_init")
    try:
        return StartedPictures(Pictures(Path(config.path), config.picture_options))
    except UnsupportedPicturesError as error:
        return StartedPictures(refusal=str(error))
