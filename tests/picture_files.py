"""Files of pictures, good ones and harmless bad ones."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def noise(width: int, height: int, channels: int = 3) -> np.ndarray:
    """Return random samples, the same ones each time."""
    return np.random.default_rng(width * height).integers(0, 256, (height, width, channels), np.uint8)


def encoded(image: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def picture(name: str, width: int = 64, height: int = 48, **options: Any) -> bytes:
    """Return a picture of noise in a format."""
    return encoded(Image.fromarray(noise(width, height)), name, **options)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, bits: int = 8, colour: int = 2, interlaced: int = 0) -> bytes:
    """Return a PNG with these rows, each after its filter's number, however many the header claims."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
