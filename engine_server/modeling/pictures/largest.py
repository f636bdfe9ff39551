"""What a model's encoder takes for the pictures of which its processor makes the most."""

from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from engine_server.contract.base.bounds import PICTURE_ASPECT, PICTURE_PIXELS
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.processor import PictureProcessor

SIDE = isqrt(PICTURE_PIXELS.limit)
HEIGHT = isqrt(PICTURE_PIXELS.limit // PICTURE_ASPECT.limit)
# Widths and heights. Processors that bound the sides make the most of a square; those that bound the number of tiles
# have as many as that in one row for a strip, and often fewer for a square.
SIZES = ((SIDE, SIDE), (PICTURE_ASPECT.limit * HEIGHT, HEIGHT))


def largest_inputs(folder: Path, options: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield what a model's `get_image_features` takes, by name, for each of the largest pictures that it processes.

    folder: the model's. options: see `PictureProcessor.of_folder`.
    """
    try:
        processor = PictureProcessor.of_folder(folder, options)
    except UnsupportedPicturesError:
        return  # requests can't have pictures either
    for size in SIZES:
        try:
            # White, since encoders pass over tiles that are zero, as black ones may be.
            _, arrays = processor.process(Image.new("RGB", size, "white"))
        except Exception:  # noqa: S112  (a processor raises any; requests have such a picture refused)
            continue
        yield {name: torch.from_numpy(array) for name, array in arrays.items()}
