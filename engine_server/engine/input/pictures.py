"""The pictures of prompts, of which those that are not known are processed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, Self

from engine_server.engine.input.placeholders import KnownPicture
from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.pictures import Picture, ProcessedPicture


class Pictures(Protocol):
    """The processor of a model's pictures."""

    @property
    def template_token(self) -> str:
        """The text that a chat template writes for each picture."""

    @property
    def image_token(self) -> str:
        """The token that stands for a picture, and then for each of its rows."""

    @property
    def media_tokens(self) -> tuple[str, ...]:
        """All texts that have to do with media."""

    def digest(self, picture: Picture) -> str:
        """Return the digest of what the model makes of a picture."""

    def replacement(self, digest: str) -> str | None:
        """Return the text in the place of a picture's image token, if it is remembered."""

    def take_stats(self) -> PictureStats:
        """Return the statistics since the last call."""

    def measure(self, pictures: Sequence[Picture], caller: str | None) -> Future[Any]:
        """Check the pixels of all new pictures of a request. The future fails with InvalidRequestError."""

    def describe(self, picture: Picture, caller: str | None) -> Future[str]:
        """Process a picture, and return the text in the place of its image token.

        The call or its result raise InvalidRequestError, QueueFullError or ShareUsedError.
        """

    def process(self, picture: Picture, caller: str | None) -> Future[ProcessedPicture]:
        """Return what `describe` may have kept of a picture, or process it again; it raises the same errors."""


class PendingPictures:
    """The pictures of one request, of which those that are not known are being processed.

    caller: who shares the processor in turns with others. Raises the errors of `Pictures.process`. As a context manager
    it cancels at its end what is not processed by then.
    """

    def __init__(self, processor: Pictures, pictures: Sequence[Picture], caller: str | None) -> None:
        self._pictures = pictures
        self._digests = [processor.digest(picture) for picture in pictures]
        self._replacements: dict[str, str] = {}
        # By digest.
        self._started: dict[str, Future[str]] = {}
        new: dict[str, Picture] = {}
        for digest, picture in zip(self._digests, pictures, strict=True):
            if (replacement := processor.replacement(digest)) is None:
                new.setdefault(digest, picture)
            else:
                self._replacements[digest] = replacement
        self._measured = processor.measure(list(new.values()), caller)
        try:
            for digest, picture in new.items():
                self._started[digest] = processor.describe(picture, caller)
        except BaseException:
            self.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def futures(self) -> list[tuple[int, Future[Any]]]:
        """Return what is being processed, each with the index of its first picture."""
        processed = [(self._digests.index(digest), future) for digest, future in self._started.items()]
        return [(0, self._measured), *processed] if processed else []

    def cancel(self) -> None:
        self._measured.cancel()
        for future in self._started.values():
            future.cancel()

    def known(self) -> list[KnownPicture]:
        """Return the pictures once all of them are processed."""
        return [
            self._known(digest, picture)
            for digest, picture in zip(self._digests, self._pictures, strict=True)
        ]

    def _known(self, digest: str, picture: Picture) -> KnownPicture:
        if digest not in self._started:
            return KnownPicture(picture, digest, self._replacements[digest])
        return KnownPicture(picture, digest, self._started[digest].result())
