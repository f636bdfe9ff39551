"""Pictures as parts of OpenAI's chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_server.engine.input.sent_picture import TAKEN, SentPicture, wrong_picture

# Fields that name a picture that was sent before, or elsewhere; nothing is stored here.
STORED = ("uuid", "file_id")


def read_image_url(part: Mapping[str, Any]) -> SentPicture:
    """Read a part of the type image_url. What is wrong with it is said once it is decoded."""
    given = part.get("image_url")
    image = given if isinstance(given, Mapping) else {"url": given}
    return picture_of_url(image.get("url"), image.get("detail"), part, "image_url.url")


def picture_of_url(url: object, detail: object, part: Mapping[str, Any], field: str) -> SentPicture:
    """Return the picture of a URL in a part. field: its name there."""
    for name in STORED:
        if part.get(name) is not None:
            return wrong_picture(f"the picture has a {name}, and nothing is stored here; {TAKEN} as {field}")
    if not isinstance(url, str):
        return wrong_picture(f"the picture has no {field}; {TAKEN}")
    return SentPicture(url, is_url=True, low_detail=detail == "low")
