"""A body without its pictures: a parser would copy megabytes of base64, while which no other thread runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine_server.shared.abridged_body import KEPT_BYTES, long_files
from engine_server.shared.body_buffer import Body

if TYPE_CHECKING:
    from engine_server.engine.input.sent_picture import SentPicture
    from engine_server.server.api.pictures import PictureReader

# The characters that JSON has in a string as they are, but for the backslash and what is no ASCII.
FIRST_PLAIN, LAST_PLAIN = ord(" "), ord("~")


class CutBody:
    """A JSON body in which a name stands for each longer file. Pictures take the files that they have the names of.

    What is parsed equals what the whole body gives once all files are taken: no name is left anywhere. None can be
    guessed, so that a client's own text is never one.
    """

    def __init__(self, body: Body, files: Iterable[range]) -> None:
        """files: the places in the body of what is cut from it."""
        view, prefix = memoryview(body), secrets.token_hex(16)
        self._files: dict[str, memoryview] = {}
        self._taken: set[str] = set()
        self._parts: list[bytes | memoryview] = []
        written = 0
        for file in files:
            name = f"{prefix}{len(self._files)}"
            self._files[name] = view[file.start : file.stop]
            self._parts += view[written : file.start], name.encode()
            written = file.stop
        self._parts.append(view[written:])

    @property
    def json(self) -> bytes:
        """The body with the names."""
        return b"".join(self._parts)

    def read(self, reader: PictureReader, part: Mapping[str, Any]) -> SentPicture:
        """Return the picture of a part, with its file if the part has the name of one."""
        picture = reader(part)
        name = picture.base64 if len(picture) <= KEPT_BYTES else ""
        if isinstance(name, str) and (file := self._files.get(name)) is not None:
            picture.base64 = file
            self._taken.add(name)
        return picture

    @property
    def all_taken(self) -> bool:
        return len(self._taken) == len(self._files)


def plain_files(body: Body) -> list[range]:
    """Return the places of the longer files in a body whose characters are what their bytes are in ASCII."""
    return [file for file in long_files(body) if is_plain(body, file)]


def is_plain(body: Body, file: range) -> bool:
    """Return True if a string of JSON has the bytes of a file as its characters."""
    characters = np.frombuffer(body, np.uint8, len(file), file.start)
    return bool(
        characters.min() >= FIRST_PLAIN
        and characters.max() <= LAST_PLAIN
        and body.find(b"\\", file.start, file.stop) < 0
    )
