"""Pictures are read as people see them; whatever is no good picture is refused with the reason."""

import struct
import zlib

import numpy as np
import pytest
from picture_files import SIGNATURE, chunk, encoded, noise, picture, png
from PIL import Image

from engine_server.pictures import png_data
from engine_server.pictures.reading import open_picture, read_picture
from engine_server.requests.errors import InvalidRequestError


def pixels(data: bytes) -> np.ndarray:
    image = read_picture(data)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("options", [{"name": "PNG"}, {"name": "WEBP", "lossless": True}])
def test_lossless_pictures_keep_their_pixels(options: dict) -> None:
    np.testing.assert_array_equal(pixels(picture(**options)), noise(64, 48))


@pytest.mark.parametrize("name", ["JPEG", "WEBP"])
def test_lossy_pictures_are_near_to_their_pixels(name: str) -> None:
    smooth = Image.linear_gradient("L").convert("RGB")
    found = pixels(encoded(smooth, name, quality=95)).astype(int)
    assert abs(found - np.asarray(smooth)).max() < 8


@pytest.mark.parametrize("shape", [(1, 1), (1, 200), (200, 1)])
def test_smallest_and_longest_pictures_are_taken(shape: tuple[int, int]) -> None:
    np.testing.assert_array_equal(pixels(picture("PNG", *shape)), noise(*shape))


def test_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue", "lime")]
    for name, options in {"GIF": {}, "WEBP": {"lossless": True}, "PNG": {}}.items():
        data = encoded(frames[0], name, save_all=True, append_images=frames[1:], **options)
        assert {tuple(pixel) for row in pixels(data) for pixel in row} == {(255, 0, 0)}


def test_colours_for_print_become_those_of_screens() -> None:
    found = pixels(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert (found[8, 8] == [254, 0, 0]).all() or abs(found[8, 8].astype(int) - [255, 0, 0]).max() < 8


def test_16_bits_of_grey_keep_their_upper_8() -> None:
    grey = np.arange(0, 1 << 16, 16, dtype=np.uint16).reshape(64, 64)
    found = pixels(encoded(Image.fromarray(grey), "PNG"))
    np.testing.assert_array_equal(found, np.repeat((grey >> 8)[..., None], 3, axis=-1))


def test_transparent_grey_of_16_bits_is_white() -> None:
    grey = np.full((4, 4), 700, np.uint16)
    grey[:2] = 40_000
    found = pixels(encoded(Image.fromarray(grey), "PNG", transparency=700))
    assert (found[2:] == 255).all() and (found[:2] == 40_000 >> 8).all()


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_pictures_without_colours_of_their_own_become_rgb(mode: str) -> None:
    image = Image.fromarray(noise(32, 32)).convert(mode)
    np.testing.assert_array_equal(pixels(encoded(image, "PNG")), np.asarray(image.convert("RGB")))


def test_transparency_shows_white() -> None:
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    half.paste((10, 20, 30, 0), (0, 0, 8, 4))
    for name, options in {"PNG": {}, "WEBP": {"lossless": True, "exact": True}}.items():
        found = pixels(encoded(half, name, **options))
        assert (found[:4] == 255).all() and (found[4:] == 127).all()


@pytest.mark.parametrize("name", ["PNG", "GIF"])
def test_transparent_entry_of_a_palette_shows_white(name: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([200, 0, 0, 0, 200, 0])
    image.paste(0, (0, 0, 8, 4))
    found = pixels(encoded(image, name, transparency=0))
    assert (found[:4] == 255).all() and (found[4:] == [0, 200, 0]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG"])
def test_pictures_are_turned_as_their_cameras_say(name: str, orientation: int) -> None:
    blocks = Image.new("RGB", (64, 32))
    for corner, colour in enumerate(("red", "lime", "blue", "white")):
        blocks.paste(colour, (corner % 2 * 32, corner // 2 * 16, corner % 2 * 32 + 32, corner // 2 * 16 + 16))
    exif = Image.Exif()
    exif[0x0112] = orientation
    # The corners of the upright picture: 0 and 1 above, 2 and 3 below.
    upright = {
        1: [0, 1, 2, 3], 2: [1, 0, 3, 2], 3: [3, 2, 1, 0], 4: [2, 3, 0, 1],
        5: [0, 2, 1, 3], 6: [2, 0, 3, 1], 7: [3, 1, 2, 0], 8: [1, 3, 0, 2],
    }[orientation]  # fmt: skip

    found = pixels(encoded(blocks, name, exif=exif)).astype(int)

    height, width = found.shape[:2]
    assert (width, height) == ((64, 32) if orientation < 5 else (32, 64))
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)])
    corners = [
        found[height // 4 + y * height // 2, width // 4 + x * width // 2] for y in range(2) for x in range(2)
    ]
    assert [int(abs(colours - corner).sum(axis=1).argmin()) for corner in corners] == upright


def test_broken_exif_data_leave_a_picture_as_it_is() -> None:
    data = picture("JPEG", exif=b"Exif\x00\x00" + b"\xff" * 40)
    assert pixels(data).shape == (48, 64, 3)


WHOLE_PNG = picture("PNG")
TOO_LARGE = "33,558,528 pixels in a picture; at most 33,554,432 are allowed"
ASPECT = "times the shorter side of a picture in its longer side; at most 200 are allowed"
BAD = {
    "text": (b"hello", "no PNG, JPEG, WebP or GIF by its first bytes"),
    "nothing": (b"", "no PNG, JPEG, WebP or GIF by its first bytes"),
    "TIFF": (picture("TIFF"), "no PNG, JPEG, WebP or GIF by its first bytes"),
    "BMP": (picture("BMP"), "no PNG, JPEG, WebP or GIF by its first bytes"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, WebP or GIF by its first bytes"),
    "RIFF of sound": (b"RIFF\x24\x00\x00\x00WAVEfmt ", "no PNG, JPEG, WebP or GIF by its first bytes"),
    "PNG's signature alone": (SIGNATURE, "the PNG has a header that is cut off or broken"),
    "JPEG's signature alone": (b"\xff\xd8\xff\xe0", "the JPEG has a header that is cut off or broken"),
    "GIF's signature alone": (b"GIF89a", "the GIF has a header that is cut off or broken"),
    "WebP's signature alone": (b"RIFF\x00\x00\x00\x00WEBP", "the WEBP has a header that is cut off or broken"),
    "cut PNG": (WHOLE_PNG[: len(WHOLE_PNG) // 2], "the PNG can't be decoded"),
    "cut JPEG": (picture("JPEG")[:-400], "the JPEG can't be decoded"),
    "cut WebP": (picture("WEBP")[:-400], "the WEBP"),
    "cut GIF": (picture("GIF")[:-400], "the GIF can't be decoded"),
    "PNG without rows": (png(64, 48, b""), "the PNG can't be decoded"),
    "PNG that lacks rows": (png(64, 48, bytes(193 * 20)), "image data are broken, or fewer than its size"),
    "PNG that lacks a byte": (png(64, 48, bytes(193 * 48 - 1)), "the PNG can't be decoded"),
    "interlaced PNG that lacks rows": (png(64, 48, bytes(4000), interlaced=1), "the PNG can't be decoded"),
    "PNG of no zlib": (
        WHOLE_PNG[:33] + chunk(b"IDAT", b"no zlib at all") + chunk(b"IEND", b""), "the PNG can't be decoded"
    ),
    "changed PNG": (
        WHOLE_PNG[:60] + bytes([WHOLE_PNG[60] ^ 1]) + WHOLE_PNG[61:], "the PNG can't be decoded"
    ),
    "PNG of a pixel more than the bound": (png(8194, 4096, b""), "8,194 x 4,096 pixels"),
    "PNG that claims 2^26 pixels": (png(8192, 8192, b""), "67,108,864 pixels in a picture; at most 33,554,432"),
    "PNG that claims 2^62 pixels": (png(2**31 - 1, 2**31 - 1, b""), "pixels in a picture; at most 33,554,432"),
    "GIF that claims 2^26 pixels": (
        picture("GIF")[:6] + struct.pack("<HH", 8192, 8192) + picture("GIF")[10:], "67,108,864 pixels in a picture"
    ),
    "201 times as wide": (png(201, 1, bytes(604)), f"there are 201 {ASPECT}"),
    "201 times as high": (png(1, 201, bytes(4 * 201)), f"there are 201 {ASPECT}"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_picture_is_refused_with_the_reason(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(InvalidRequestError) as raised:
        read_picture(data)
    assert reason in str(raised.value)


@pytest.mark.parametrize("claimed", [8192, 16383])
def test_canvas_of_a_webp_is_bounded_before_it_is_decoded(claimed: int) -> None:
    size = struct.pack("<I", claimed - 1)[:3]
    header = b"VP8X" + struct.pack("<I", 10) + bytes(4) + size * 2
    body = b"WEBP" + header + picture("WEBP", lossless=True)[12:]
    with pytest.raises(InvalidRequestError):
        open_picture(b"RIFF" + struct.pack("<I", len(body)) + body)


@pytest.mark.parametrize(
    ("bits", "colour"),
    [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2), (8, 4), (16, 4), (8, 6), (16, 6)],
)
@pytest.mark.parametrize("interlaced", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (13, 9), (8, 8)])
def test_every_kind_of_png_is_taken_whole_and_refused_without_its_last_byte(
    bits: int, colour: int, interlaced: int, shape: tuple[int, int]
) -> None:
    rows = bytes(num_bytes_of_rows(*shape, bits, {0: 1, 2: 3, 4: 2, 6: 4}[colour], interlaced))
    assert pixels(png(*shape, rows, bits, colour, interlaced)).shape == (shape[1], shape[0], 3)
    assert not png_data.is_complete(png(*shape, rows[:-1], bits, colour, interlaced))
    with pytest.raises(InvalidRequestError, match="can't be decoded"):
        read_picture(png(*shape, rows[:-1], bits, colour, interlaced))


def num_bytes_of_rows(width: int, height: int, bits: int, samples: int, interlaced: int) -> int:
    """Count the pixels of each pass of a PNG one by one."""
    adam7 = ["16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777"]
    rows: dict[tuple[str, int], int] = {}
    for y in range(height):
        for x in range(width):
            key = (adam7[y % 8][x % 8] if interlaced else "1", y)
            rows[key] = rows.get(key, 0) + 1
    return sum(1 + (count * bits * samples + 7) // 8 for count in rows.values())


def test_image_data_in_several_chunks_are_joined() -> None:
    rows = zlib.compress(bytes(193 * 48))
    parts = b"".join(chunk(b"IDAT", rows[start : start + 5]) for start in range(0, len(rows), 5))
    data = WHOLE_PNG[:33] + chunk(b"IDAT", b"") + parts + chunk(b"IEND", b"")
    assert (pixels(data) == 0).all()
