"""The pictures of requests, before these are queued."""

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from engine_server.contract.base.bounded_map import BoundedMap
from engine_server.contract.base.bounds import PICTURE_BYTES, PICTURE_PIXELS, PICTURES_PIXELS
from engine_server.forks.fork_worker import Finish, ForkWorker, WorkerEndedError
from engine_server.forks.forked_tasks import ForkedTasks
from engine_server.forks.task_line import CallerId, Shares, TaskLine
from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.platform.cpu_quota import available_cpus
from engine_server.pictures.messages import (
    Describe,
    Description,
    Measure,
    Measured,
    Process,
    ProcessorSettings,
    Refused,
    Unsupported,
    decode_reply,
)
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.pictures import Picture, ProcessedPicture

MOST_FORKS = 4
MOST_WAITING = 256
# Of what is kept for models' encoders; a screenshot may become 50 MB.
MOST_INPUT_BYTES = 128 << 20
# Of the replacement texts that are remembered, and their digests.
MOST_CHARACTERS = 1 << 24
ENVIRONMENT = {
    # A fork has one thread, whatever the libraries would start.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Huge pages: a fork's memory is new to it, and small ones cost a third of its time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


Outcome = Description | Measured | ProcessedPicture


class Pictures(ForkedTasks[Outcome]):
    """The processing of pictures in forks of one process. Methods may be called by any thread.

    No picture is parsed in this process.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any] = {}) -> None:
        """Start the process for the model in a folder; it takes seconds. Raises UnsupportedPicturesError.

        options: see `PictureProcessor.of_folder`.
        """
        forks = min(MOST_FORKS, max(1, available_cpus() // 2))
        shares = Shares(forks, max(1, forks // 2), MOST_WAITING, MOST_WAITING // 2)
        super().__init__(TaskLine("pictures", "to be processed", shares), "pictures")
        self._settings = ProcessorSettings(str(folder), dict(options), forks)
        self._replacements = BoundedMap[str, str](MOST_CHARACTERS, characters)
        # Processed pictures that the core has not asked for yet.
        self._inputs = BoundedMap[str, ProcessedPicture](MOST_INPUT_BYTES, input_bytes)
        self._stats = PictureStats()
        try:
            described = self._submit(b"", Describe(), None).result()
        except WorkerEndedError as error:
            raise UnsupportedPicturesError("the process for pictures ended at its start") from error
        except UnsupportedPicturesError:
            self.close()
            raise
        assert isinstance(described, Description)
        self._settings_digest = described.settings_digest
        self.template_token = described.template_token
        self.image_token = described.image_token
        self.media_tokens = tuple(described.media_tokens)

    def digest(self, picture: Picture) -> str:
        """Return what identifies a picture and all that its rows depend on, but for the model's weights."""
        identity = msgspec.msgpack.encode((picture.sha256, picture.low_detail, self._settings_digest))
        return hashlib.sha256(identity).hexdigest()

    def replacement(self, digest: str) -> str | None:
        """Return the text for a picture that was processed before, or None if it is forgotten."""
        with self._lock:
            found = self._replacements.find(digest)
            self._stats.remembered += found is not None
            return found

    def take_stats(self) -> PictureStats:
        """Return the statistics since the last call."""
        with self._lock:
            stats, self._stats = self._stats, PictureStats()
            return stats

    def measure(self, pictures: Sequence[Picture], caller: CallerId) -> Future[Any]:
        """Check the pixels of all pictures that a request has new, before any is decoded.

        The future fails with InvalidRequestError if there are too many. Raises QueueFullError or ShareUsedError.
        """
        if len(pictures) * PICTURE_PIXELS.limit <= PICTURES_PIXELS.limit:
            few: Future[Any] = Future()
            few.set_result(None)
            return few
        digest = hashlib.sha256(msgspec.msgpack.encode([picture.sha256 for picture in pictures])).digest()
        return self._submit(digest, Measure([picture.data for picture in pictures]), caller)

    def describe(self, picture: Picture, caller: CallerId) -> Future[str]:
        """Return the text for a picture, once it is processed. A caller that no longer wants it cancels it.

        What the encoder takes is kept for `process`, as long as there is room. The future raises what that of `process`
        raises, and so does the call.
        """
        text: Future[str] = Future()
        pending = self._submit_picture(picture, caller)
        known = weakref.ref(pending)  # since `text` may outlive it, whose result is large

        def finish(done: Future[ProcessedPicture]) -> None:
            if not text.set_running_or_notify_cancel():
                return
            error = done.exception()
            if error is None:
                text.set_result(done.result().replacement)
            else:
                text.set_exception(error)

        def withdraw(cancelled: Future[str]) -> None:
            if cancelled.cancelled() and (running := known()) is not None:
                running.cancel()

        text.add_done_callback(withdraw)
        pending.add_done_callback(finish)
        return text

    def process(self, picture: Picture, caller: CallerId) -> Future[ProcessedPicture]:
        """Return what the model takes for a picture, once it is processed. A caller that no longer wants it cancels it.

        The future fails with InvalidRequestError for a picture that can't be taken. Raises the same for too many bytes,
        QueueFullError, or ShareUsedError if the caller has too many pictures that wait.
        """
        pending = self._submit_picture(picture, caller)
        pending.add_done_callback(partial(self._give_away, self.digest(picture)))
        return pending

    def _give_away(self, digest: str, _: Future[ProcessedPicture]) -> None:
        with self._lock:
            self._inputs.pop(digest)

    def _submit_picture(self, picture: Picture, caller: CallerId) -> Future[ProcessedPicture]:
        if excess := PICTURE_BYTES.exceeded(len(picture.data)):
            raise InvalidRequestError(excess)
        digest = bytes.fromhex(self.digest(picture))
        pending = self._submit(digest, Process(picture.data, picture.low_detail), caller)
        return cast("Future[ProcessedPicture]", pending)

    def _known(self, digest: bytes) -> Outcome | None:
        return self._inputs.find(digest.hex())

    def _start_worker(self, finish: Finish) -> ForkWorker:
        return ForkWorker("engine_server.pictures.picture_process", self._settings, finish, ENVIRONMENT)

    def _decode(self, content: bytes | memoryview) -> Outcome:
        reply = decode_reply(content)
        if isinstance(reply, Unsupported):
            raise UnsupportedPicturesError(reply.message)
        if isinstance(reply, Refused):
            with self._lock:
                self._stats.refused += 1
            raise InvalidRequestError(reply.message)
        if isinstance(reply, Description | Measured):
            return reply
        return ProcessedPicture(reply.replacement, reply.inputs, reply.seconds)

    def _keep(self, digest: bytes, result: Outcome) -> None:
        """Remember a picture's replacement text, and what its encoder takes for a while."""
        if not isinstance(result, ProcessedPicture):
            return
        self._inputs.keep(digest.hex(), result)
        self._stats.seconds.append(result.seconds)
        self._replacements.keep(digest.hex(), result.replacement)

    def close(self) -> None:
        """End the process; pictures that it has not processed get WorkerEndedError."""
        self._writer.shutdown()
        if self._worker is not None:
            self._worker.close()


def characters(digest: str, text: str) -> int:
    return len(digest) + len(text)


def input_bytes(digest: str, picture: ProcessedPicture) -> int:
    return sum(len(tensor.data) for tensor in picture.inputs.values())
