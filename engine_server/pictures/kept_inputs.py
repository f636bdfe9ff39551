"""Processed pictures that the core has not asked for yet."""

from collections import OrderedDict

from engine_server.requests.pictures import ProcessedPicture


class KeptInputs:
    """Processed pictures by digest, in bounded memory: the oldest give way. One that is larger is not kept.

    limit: in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._pictures: OrderedDict[bytes, ProcessedPicture] = OrderedDict()

    def find(self, digest: bytes) -> ProcessedPicture | None:
        return self._pictures.get(digest)

    def keep(self, digest: bytes, picture: ProcessedPicture) -> None:
        self.pop(digest)
        if size_of(picture) > self._limit:
            return
        self._pictures[digest] = picture
        self._used += size_of(picture)
        while self._used > self._limit:
            _, oldest = self._pictures.popitem(last=False)
            self._used -= size_of(oldest)

    def pop(self, digest: bytes) -> None:
        """Drop a picture, if it is kept."""
        if (picture := self._pictures.pop(digest, None)) is not None:
            self._used -= size_of(picture)


def size_of(picture: ProcessedPicture) -> int:
    return sum(len(tensor.data) for tensor in picture.inputs.values())
