"""A picture as a client sends it, in base64 or as a file."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterator

from engine_server.contract.base.bounds import PICTURE_BYTES
from engine_server.contract.base.quoting import quote
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pictures import Picture

# Characters that are decoded at once, while which no other thread runs.
PIECE = 1 << 20
TAKEN = "it takes a data: URL with base64"
# Characters of a URL that an error quotes.
QUOTED = 40


class SentPicture:
    """A picture in base64, alone or in a data: URL, which is decoded at its first use, or a file.

    Methods raise InvalidRequestError, whose message says what the picture is and not where it is.
    """

    __slots__ = ("_fault", "_picture", "_text", "is_url", "low_detail")

    def __init__(self, text: str, *, is_url: bool, low_detail: bool = False, fault: str = "") -> None:
        """fault: why it can't be decoded, if that is known."""
        self._text = text
        self._fault = fault
        self._picture: Picture | None = None
        self.is_url = is_url
        self.low_detail = low_detail

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

    def check(self) -> None:
        """Raise InvalidRequestError for a URL of another kind, and for a picture that is too large."""
        if self._picture is None:
            self._begin()

    def picture(self) -> Picture:
        """Return the picture. The first call takes long, and other threads run meanwhile."""
        if self._picture is None:
            begin = self._begin()
            digest, parts = hashlib.sha256(), []
            for part in decoded(self._text, begin):
                digest.update(part)
                parts.append(part)
            data = b"".join(parts)
            if not data:
                raise InvalidRequestError("the picture is empty", "prompt")
            self._picture = Picture(data, digest.hexdigest(), self.low_detail)
            self._text = ""
        return self._picture

    def _begin(self) -> int:
        """Return where base64 begins."""
        if self._fault:
            raise InvalidRequestError(self._fault, "prompt")
        begin = data_begin(self._text) if self.is_url else 0
        if error := PICTURE_BYTES.exceeded((len(self._text) - begin) // 4 * 3 - 2):
            raise InvalidRequestError(error, "prompt")
        return begin


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


def decoded(text: str, begin: int) -> Iterator[bytes]:
    """Yield the bytes of base64, which may have white space and lack its padding. Raises InvalidRequestError."""
    rest = ""
    try:
        for start in range(begin, len(text), PIECE):
            rest += "".join(text[start : start + PIECE].split())
            whole = len(rest) - (len(rest) % 4 or 4)
            if whole > 0:
                if rest[whole - 1] == "=":
                    raise ValueError("there is more after its end")
                yield binascii.a2b_base64(rest[:whole], strict_mode=True)
                rest = rest[whole:]
        yield binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
    except ValueError as error:
        raise InvalidRequestError(f"the picture is not valid base64: {error}", "prompt") from None
