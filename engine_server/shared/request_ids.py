"""The ids that clients give to their requests, and that logs show as they are."""

import re

# The header field, in lower case.
FIELD = b"x-request-id"
# Printable ASCII without spaces.
VALID = re.compile(rb"[\x21-\x7e]{1,128}")


def is_valid(given: bytes) -> bool:
    """Return True if a client's id can be logged as it is."""
    return VALID.fullmatch(given) is not None
