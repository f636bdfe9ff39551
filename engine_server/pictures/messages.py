"""Messages between the engine's process and the one that processes pictures."""

import math
from typing import Annotated, Any

import msgspec

from engine_server.requests.messages import RawTensor

# Bytes of an element, by the name of its type.
ELEMENT_BYTES = {"float32": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}


class PictureMessage(msgspec.Struct, array_like=True, tag=True):
    """A message with a tag, so that one decoder serves every kind."""


class ProcessorSettings(msgspec.Struct):
    """What the process needs to know at its start."""

    folder: str
    options: dict[str, Any]
    num_forks: int


# engine's process -> forks


class Describe(PictureMessage):
    """Describe the model's processor."""


class Measure(PictureMessage):
    """Read the headers of a request's pictures, and refuse too many pixels."""

    pictures: list[bytes]


class Process(PictureMessage):
    """Decode a picture and process it for the model."""

    data: bytes
    low_detail: bool


# forks -> engine's process


class Description(PictureMessage):
    """See `PictureProcessor`."""

    template_token: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    image_token: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    media_tokens: Annotated[list[str], msgspec.Meta(max_length=4096)]
    settings_digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Measured(PictureMessage):
    """The pixels of all pictures whose headers can be read."""

    pixels: Annotated[int, msgspec.Meta(ge=0)]


class Processed(PictureMessage):
    """See `PictureProcessor.process`."""

    replacement: Annotated[str, msgspec.Meta(min_length=1, max_length=1 << 22)]
    inputs: dict[Annotated[str, msgspec.Meta(max_length=256)], RawTensor]
    # That decoding and processing took.
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class Refused(PictureMessage):
    """The reason why pictures can't be taken from a request."""

    message: str


class Unsupported(PictureMessage):
    """The reason why no picture can be taken for the model."""

    message: str


Task = Describe | Measure | Process
Reply = Description | Measured | Processed | Refused | Unsupported


def decode_reply(content: bytes | memoryview) -> Reply:
    """Return a fork's reply. Raises ValueError for one of another shape."""
    reply: Reply = msgspec.msgpack.decode(content, type=Reply)
    if isinstance(reply, Processed):
        for name, tensor in reply.inputs.items():
            size = ELEMENT_BYTES.get(tensor.dtype)
            if (
                size is None
                or min(tensor.shape, default=0) < 0
                or math.prod(tensor.shape) * size != len(tensor.data)
            ):
                raise ValueError(
                    f"{name} of a processed picture has dtype {tensor.dtype} and shape {tensor.shape}"
                )
    return reply
