"""A picture as a client sends it, in base64 or as a file."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterator

from engine_server.contract.base.bounds import PICTURE_BYTES
from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture

# Characters that are decoded at once, while which no other thread runs: 0.2 ms.
PIECE = 1 << 16
TAKEN = "it takes a data: URL with base64"
# Characters of a URL that an error quotes.
QUOTED = 40


class SentPicture:
    """A picture in base64, alone or in a data: URL, which is decoded at its first use, or a file.

    Methods raise InvalidRequestError, whose message says what the picture is and not where it is.
    """

    __slots__ = ("_begin", "_fault", "_picture", "_text", "low_detail")

    def __init__(self, text: str, *, is_url: bool, low_detail: bool = False, fault: str = "") -> None:
        """fault: why it can't be decoded, if that is known."""
        self._text: str | memoryview = text
        self._fault = fault
        # Where base64 begins.
        self._begin = 0
        self._picture: Picture | None = None
        self.low_detail = low_detail
        if is_url:
            try:
                self._begin = data_begin(text)
            except InvalidRequestError as error:
                self._fault = str(error)

    @classmethod
    def of_file(cls, data: bytes) -> SentPicture:
        """Return a picture whose file a caller has."""
        fault = PICTURE_BYTES.exceeded(len(data))
        sent = cls("", is_url=False, fault=fault or "")
        if not fault:
            sent._picture = Picture(data, hashlib.sha256(data).hexdigest(), False)
        return sent

    def __len__(self) -> int:
        """Return the number of characters that are still to be decoded."""
        return len(self._text)

    @property
    def base64(self) -> str | memoryview:
        """The characters of its base64, or their ASCII."""
        return self._text[self._begin :]

    @base64.setter
    def base64(self, ascii_: memoryview) -> None:
        self._text, self._begin = ascii_, 0

    def check(self) -> None:
        """Raise InvalidRequestError for a URL of another kind, and for a picture that is too large."""
        if self._picture is not None:
            return
        error = self._fault or PICTURE_BYTES.exceeded((len(self._text) - self._begin) // 4 * 3 - 2)
        if error:
            raise InvalidRequestError(error, "prompt")

    def picture(self) -> Picture:
        """Return the picture. The first call takes long, and other threads run meanwhile."""
        if self._picture is None:
            self.check()
            digest, parts = hashlib.sha256(), []
            for part in decoded(self._text, self._begin):
                digest.update(part)
                parts.append(part)
            data = b"".join(parts)
            if not data:
                raise InvalidRequestError("the picture is empty", "prompt")
            self._picture = Picture(data, digest.hexdigest(), self.low_detail)
            self._text = ""
        return self._picture


def wrong_picture(fault: str) -> SentPicture:
    """Return a picture that can't be decoded."""
    return SentPicture("", is_url=False, fault=fault)


def data_begin(url: str) -> int:
    """Return where the data of a data: URL begin. Its parameters, the media type among them, say nothing here."""
    if url[:5].lower() != "data:":
        raise InvalidRequestError(f"the URL of the picture is {quote(url[:QUOTED])}; {TAKEN}", "prompt")
    comma = url.find(",")
    if comma < 0 or not url[5:comma].rstrip().lower().endswith(";base64"):
        raise InvalidRequestError(f"the data: URL of the picture has no base64; {TAKEN}", "prompt")
    return comma + 1


def decoded(text: str | memoryview, begin: int) -> Iterator[bytes]:
    """Yield the bytes of base64, which may have white space and lack its padding. Raises InvalidRequestError.

    text: as characters or in ASCII.
    """
    rest = ""
    try:
        for start in range(begin, len(text), PIECE):
            piece = text[start : start + PIECE]
            rest += "".join((piece if isinstance(piece, str) else str(piece, "ascii")).split())
            whole = len(rest) - (len(rest) % 4 or 4)
            if whole > 0:
                if rest[whole - 1] == "=":
                    raise ValueError("there is more after its end")
                yield binascii.a2b_base64(rest[:whole], strict_mode=True)
                rest = rest[whole:]
        yield binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
    except ValueError as error:
        raise InvalidRequestError(f"the picture is not valid base64: {error}", "prompt") from None
