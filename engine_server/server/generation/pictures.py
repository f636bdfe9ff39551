"""The pictures of a request, which are decoded in a thread, and processed while its text is tokenized."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine_server.contract.base.bounds import PICTURES
from engine_server.contract.wire.errors import ErrorCode
from engine_server.engine.input.pictures import PendingPictures, Pictures
from engine_server.engine.loop.turns import sender
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.generation.threads import run_by_size
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.engine.input.placeholders import KnownPicture
    from engine_server.engine.input.sent_picture import SentPicture
    from engine_server.requests.pictures import Picture

# A picture, and its path in the body.
PlacedPicture = tuple[str, "SentPicture"]


async def start_pictures(
    processor: Pictures, pictures: Sequence[PlacedPicture], most: int
) -> PendingPictures:
    """Decode pictures, and process those that are not known. Raises ApiError 400 for too many, or for a wrong one."""
    if error := PICTURES._replace(limit=most).exceeded(len(pictures)):
        raise ApiError(ErrorCode.INVALID_VALUE, error, param=pictures[most][0])
    for path, sent in pictures:
        with naming(path):
            sent.check()

    def decode() -> list[Picture]:
        return [decoded(path, sent) for path, sent in pictures]

    decoded_pictures = await run_by_size(sum(len(sent) for _, sent in pictures), decode)
    owner = sender.get()
    return PendingPictures(processor, decoded_pictures, None if owner is None else str(owner))


async def known_pictures(pending: PendingPictures, pictures: Sequence[PlacedPicture]) -> list[KnownPicture]:
    """Return pictures once all are processed. Raises ApiError 400 for one that can't be."""
    for index, future in pending.futures():
        with naming(pictures[index][0]):
            await asyncio.wrap_future(future)
    return pending.known()


def decoded(path: str, sent: SentPicture) -> Picture:
    with naming(path):
        return sent.picture()


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the part of the body in an error of its picture."""
    try:
        yield
    except InvalidRequestError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, f"{path}: {error}", param=path) from None
