"""A picture's file, as an image in mode RGB. Only a process made for one picture may call this."""

import io

import numpy as np
from PIL import (
    Image,
    WebPImagePlugin,  # noqa: F401  (Pillow imports the others by itself)
)

from engine_server.contract.base.bounds import PICTURE_ASPECT, PICTURE_PIXELS
from engine_server.pictures import png_data
from engine_server.pictures.file_formats import format_of
from engine_server.requests.errors import InvalidRequestError

# Of EXIF.
ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The bound of ours holds from the header on; Pillow's own warns or raises by an environment of its own.
Image.MAX_IMAGE_PIXELS = None


def read_picture(data: bytes) -> Image.Image:
    """Return the first frame of a picture, upright, in mode RGB, on white. Raises InvalidRequestError."""
    image = open_picture(data)
    name, size = image.format, image.size
    try:
        image.load()
        complete = name != "PNG" or png_data.is_complete(data)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many
        raise InvalidRequestError(f"the {name} can't be decoded: {error}") from error
    if not complete:
        raise InvalidRequestError(
            f"the {name} can't be decoded: its image data are broken, or fewer than its size"
        )
    if image.size != size:
        raise InvalidRequestError(
            f"the {name} has another size than its header: {image.size} instead of {size}"
        )
    turn = TURNS.get(orientation(image))
    image = to_rgb(image)
    return image if turn is None else image.transpose(turn)


def open_picture(data: bytes) -> Image.Image:
    """Return a picture that isn't decoded yet, whose size is within the bounds. Raises InvalidRequestError."""
    name = format_of(data)
    if name is None:
        raise InvalidRequestError("the picture is no PNG, JPEG, WebP or GIF by its first bytes")
    try:
        image = Image.open(io.BytesIO(data), formats=[name])
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many
        raise InvalidRequestError(f"the {name} has a header that is cut off or broken") from error
    shorter, longer = sorted(image.size)
    excess = PICTURE_PIXELS.exceeded(shorter * longer) or PICTURE_ASPECT.exceeded(-(-longer // shorter))
    if excess:
        raise InvalidRequestError(f"the {name} is {image.size[0]:,} x {image.size[1]:,} pixels: {excess}")
    return image


def orientation(image: Image.Image) -> int:
    """Return EXIF's number for the way in which a picture is turned; 1 for upright ones."""
    try:
        found = image.getexif().get(ORIENTATION)
    except Exception:  # a picture is shown as it is if its EXIF data are broken
        return 1
    return found if isinstance(found, int) else 1


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in mode RGB; what shines through is white."""
    if image.mode.startswith("I"):
        return of_16_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def of_16_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits in mode RGB, for which Pillow makes all above 255 white."""
    pixels = np.asarray(image)
    grey = (pixels >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[pixels == transparent] = 255
    return Image.fromarray(grey).convert("RGB")
