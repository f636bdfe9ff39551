"""The process that processes pictures: `python -m engine_server.pictures.picture_process DESCRIPTOR`.

Each picture is decoded in a fork of its own, with limits on time and memory. Settings are read from DESCRIPTOR.
"""

import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from engine_server.contract.base.bounds import PICTURES_PIXELS
from engine_server.forks.fork_server import ForkServer
from engine_server.forks.limits import Limits, ended_on_time
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.processor import PictureProcessor
from engine_server.pictures.messages import (
    Describe,
    Description,
    Measure,
    Measured,
    Process,
    Processed,
    ProcessorSettings,
    Refused,
    Reply,
    Task,
    Unsupported,
)
from engine_server.pictures.reading import open_picture, read_picture
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import RawTensor

# CPU time, memory and result of a fork.
LIMITS = Limits(seconds=5.0, memory=1 << 30, result=1 << 28)
MOST_CHARACTERS = 300


class PictureTasks:
    """What the forks do."""

    def __init__(self, settings: ProcessorSettings) -> None:
        self._processor: PictureProcessor | None = None
        self._description: Description | Unsupported
        try:
            self._processor = PictureProcessor.of_folder(Path(settings.folder), settings.options)
            self._description = Description(
                self._processor.template_token,
                self._processor.image_token,
                list(self._processor.media_tokens),
                self._processor.settings_digest,
            )
        except UnsupportedPicturesError as error:
            self._description = Unsupported(str(error))

    def run(self, content: bytes | memoryview) -> bytes:
        """Return the reply to a task."""
        try:
            reply = self._reply(msgspec.msgpack.decode(content, type=Task))
        except InvalidRequestError as error:
            reply = Refused(str(error)[:MOST_CHARACTERS])
        except MemoryError:
            reply = Refused(beyond_memory())
        return msgspec.msgpack.encode(reply)

    def _reply(self, task: Task) -> Reply:
        if isinstance(task, Describe) or self._processor is None:
            return self._description
        if isinstance(task, Measure):
            return Measured(pixels_of(task.pictures))
        return process(self._processor, task)


def pixels_of(pictures: list[bytes]) -> int:
    """Return the number of pixels of those pictures whose headers can be read. Raises InvalidRequestError."""
    total = 0
    for data in pictures:
        try:
            width, height = open_picture(data).size
        except InvalidRequestError:  # which names it once it is processed
            continue
        total += width * height
    if excess := PICTURES_PIXELS.exceeded(total):
        raise InvalidRequestError(excess)
    return total


def process(processor: PictureProcessor, task: Process) -> Processed:
    """Decode and process a picture. Raises InvalidRequestError."""
    start = time.perf_counter()
    image = read_picture(task.data)
    try:
        replacement, inputs = processor.process(image, task.low_detail)
    except MemoryError:
        raise
    except Exception as error:  # a processor raises any
        width, height = image.size
        raise InvalidRequestError(
            f"the model's processor can't take the picture of {width} x {height} pixels: {error}"
        ) from error
    tensors = {name: raw(array) for name, array in inputs.items()}
    return Processed(replacement, tensors, time.perf_counter() - start)


def raw(array: np.ndarray) -> RawTensor:
    return RawTensor(array.dtype.name, list(array.shape), memoryview(array.tobytes()))


def ended(status: int) -> bytes:
    """Return the reply for a fork that was ended from outside."""
    on_time = f"the picture takes more than {LIMITS.seconds:g} s of CPU time to decode and process"
    return msgspec.msgpack.encode(Refused(on_time if ended_on_time(status) else beyond_memory()))


def beyond_memory() -> str:
    return (
        f"the picture crashes its decoder, takes more than {LIMITS.memory >> 20} MiB of memory to decode and process, "
        f"or becomes more than {LIMITS.result >> 20} MiB for the model"
    )


def main() -> None:
    """Process pictures until the parent closes standard input."""
    with os.fdopen(int(sys.argv[1]), "rb") as stream:
        settings = msgspec.msgpack.decode(stream.read(), type=ProcessorSettings)
    ForkServer(PictureTasks(settings).run, ended, LIMITS, settings.num_forks).serve()


if __name__ == "__main__":
    main()
