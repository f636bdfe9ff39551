"""Decoding of what another process sent, whose faults are all ValueErrors."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def decode(decoder: Callable[[bytes], T], content: bytes) -> T:
    """Return what `decoder`, the method of a msgspec decoder, finds. Raises ValueError for whatever it cannot take."""
    try:
        return decoder(content)
    except RecursionError:
        raise ValueError("its arrays and objects are nested too deeply") from None
