"""The image data of a PNG, for which Pillow leaves rows black in silence if they end early."""

import struct
import zlib
from collections.abc import Iterator

CHUNK = struct.Struct(">I4s")
CRC = struct.Struct(">I")
# Width, height, bits of a sample, type of colour, and whether it is interlaced after two methods that have one value.
HEADER = struct.Struct(">IIBBxxB")
HEADER_START = 16
# By type of colour.
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Of Adam7: first column and row, and the distances to the next ones.
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
WHOLE = ((0, 0, 1, 1),)
PIECE = 1 << 20


def is_complete(data: bytes) -> bool:
    """Return True if the image data of a PNG are intact and are as many as its header says.

    The header has been checked. Raises zlib.error, struct.error or KeyError for data of no PNG.
    """
    missing = num_bytes(*HEADER.unpack_from(data, HEADER_START))
    decompressor = zlib.decompressobj()
    for chunk in image_data(data):
        rest: bytes | memoryview = chunk
        while rest and missing > 0 and not decompressor.eof:
            missing -= len(decompressor.decompress(rest, PIECE))
            rest = decompressor.unconsumed_tail
    return missing <= 0


def num_bytes(width: int, height: int, bits: int, colour: int, interlaced: int) -> int:
    """Return the number of bytes of all rows, each of which begins with its filter."""
    total = 0
    for column, row, columns, rows in PASSES if interlaced else WHOLE:
        in_row = -(-(width - column) // columns)
        if in_row > 0:
            total += -(-(height - row) // rows) * (1 + -(-in_row * bits * SAMPLES[colour] // 8))
    return total


def image_data(data: bytes) -> Iterator[memoryview]:
    """Yield the content of each intact chunk of image data, up to a broken one."""
    view, position = memoryview(data), HEADER_START - CHUNK.size
    while position + CHUNK.size + CRC.size <= len(data):
        length, kind = CHUNK.unpack_from(data, position)
        end = position + CHUNK.size + length
        if end + CRC.size > len(data):
            return
        if kind == b"IDAT":
            if CRC.unpack_from(data, end)[0] != zlib.crc32(view[position + 4 : end]):
                return
            yield view[position + CHUNK.size : end]
        position = end + CRC.size
