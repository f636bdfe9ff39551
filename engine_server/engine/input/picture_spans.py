"""The pictures of a prompt in the message to the core."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from engine_server.requests.messages import AddRequest, PictureSpan
from engine_server.requests.pictures import Picture, PromptPicture


def pictures_of(prompt: object) -> Sequence[PromptPicture]:
    """Return the pictures of a checked prompt."""
    return prompt.get("pictures") or () if isinstance(prompt, Mapping) else ()


def place_pictures(message: AddRequest, pictures: Sequence[PromptPicture]) -> dict[str, Picture]:
    """Write the places of a prompt's pictures to its message; return the pictures by the digests that it has.

    The core asks for what its encoder takes, once it is about to encode one.
    """
    by_digest = {}
    for one in pictures:
        digest = shared_digest(one.digest, message.cache_scope, message.cache_salt)
        by_digest[digest] = one.picture
        first = 0
        for run in one.runs:
            message.picture_spans.append(PictureSpan(run.start, run.length, digest, first))
            first += run.length
    return by_digest


def shared_digest(digest: str, scope: str | None, salt: str | None) -> str:
    """Return the digest of a picture among the requests that may share what was computed of it.

    These are the ones that share blocks of the prefix cache.
    """
    return hashlib.sha256(msgspec.msgpack.encode((scope, salt, digest))).hexdigest()
