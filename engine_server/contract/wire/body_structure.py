"""The number of values in the JSON of a request's body, which is bounded before the body is parsed."""

from engine_server.contract.base.bounds import (
    JSON_BRACKETS,
    JSON_COMMAS,
    TOKEN_ID_COMMAS,
    excess_of_values,
    without_strings,
)
from engine_server.contract.wire.paths import TOKEN_ID_PATHS

# A body without more bytes has no more values than any.
UNCOUNTED_BYTES = min(JSON_BRACKETS.limit, JSON_COMMAS.limit)


def excess_of_structure(body: bytes | bytearray, path: str, continues: bool = False) -> str | None:
    """Return the error message for JSON with too many values, whose scan would block other requests; else None.

    path: that of the request. continues: the body has the token ids of a stream that it continues.
    """
    commas = TOKEN_ID_COMMAS if continues or path in TOKEN_ID_PATHS else JSON_COMMAS
    # Nearly all bodies have few with their strings, which take much longer to remove.
    return excess_of_values(body, commas) and excess_of_values(without_strings(body), commas)
