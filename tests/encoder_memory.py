"""What is reserved for the encoding of pictures, and what it takes, on any device that measures it."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from tiny_pictures import tiny_model

from engine_server.core.loaded_model import LoadedModel
from engine_server.modeling.pictures.processor import PictureProcessor

SIZES = [(28, 28), (640, 480), (30, 210), (1400, 200), (1000, 1001), (2000, 1300)]


def internvl_of_tiles(most: int, folder: Path) -> Path:
    """Write an InternVL that makes at most as many tiles of a picture: of a long strip, rather than of a square."""
    settings = tiny_model("internvl", folder) / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_patches": most}))
    return folder


def reserved(loaded: LoadedModel) -> int:
    """Return the bytes that are reserved for the largest picture."""
    loaded.reserve_pictures()
    return loaded._memory.sizes["largest_picture"]


def taken(loaded: LoadedModel, folder: Path) -> Iterator[int]:
    """Yield the bytes that a picture of each of SIZES takes while it is encoded. folder: the model's."""
    processor, platform = PictureProcessor.of_folder(folder), loaded._platform
    for size in SIZES:
        _, arrays = processor.process(Image.new("RGB", size, "white"))
        platform.reset_peak_memory()
        loaded.picture_rows({name: torch.from_numpy(array) for name, array in arrays.items()})
        yield platform.transient_memory() or 0
