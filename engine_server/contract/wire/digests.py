"""Hashes that programs compare: hexadecimal digits."""

import re
from typing import Annotated

import msgspec

DIGEST_LENGTH = 32
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
_DIGEST = re.compile(r"[0-9a-f]{32}")


def is_digest(text: str) -> bool:
    """Return True for a hash of the form that engines send."""
    return _DIGEST.fullmatch(text) is not None
