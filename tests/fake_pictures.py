"""A processor of pictures that reads none: the bytes of one say what becomes of it."""

import base64
import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from instant_pictures import InstantPictures, finished

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture, ProcessedPicture

BROKEN = b"broken"


class FakePictures(InstantPictures):
    """Replaces a picture's token by as many as its file has bytes, between `begin` and `end`.

    processed: the digests of those that were not known. callers: those who asked for it.
    """

    def __init__(
        self,
        image_token: str,
        media_tokens: Sequence[str] = (),
        begin: str = "",
        end: str = "",
        template_token: str = "",
    ) -> None:
        self.image_token = image_token
        self.template_token = template_token or image_token
        self.media_tokens = (*{image_token: None, self.template_token: None}, *media_tokens)
        self._around = begin, end
        self._known: dict[str, str] = {}
        self.processed: list[str] = []
        self.callers: list[str | None] = []

    def digest(self, picture: Picture) -> str:
        return hashlib.sha256(f"{picture.sha256} {picture.low_detail}".encode()).hexdigest()

    def replacement(self, digest: str) -> str | None:
        return self._known.get(digest)

    def describe(self, picture: Picture, caller: str | None) -> Future[Any]:
        done: Future[Any] = Future()
        digest = self.digest(picture)
        self.processed.append(digest)
        self.callers.append(caller)
        if picture.data == BROKEN:
            done.set_exception(InvalidRequestError("the picture is broken", "prompt"))
        else:
            begin, end = self._around
            self._known[digest] = begin + self.image_token * len(picture.data) + end
            done.set_result(self._known[digest])
        return done

    def process(self, picture: Picture, caller: str | None) -> Future[ProcessedPicture]:
        return finished(ProcessedPicture(self._known[self.digest(picture)], {}))


def data_url(data: bytes, parameters: str = "image/png") -> str:
    return f"data:{parameters};base64,{base64.b64encode(data).decode()}"
