"""The bodies of requests without the bulk of their pictures: all that the router reads, and counts as a prompt.

A picture, or another file, is base64 in a string of JSON: a `data:` URL, or the value of a key `data`. It may be 20 MB,
of which an engine makes some hundred tokens, and tells a router nothing but whether it is another one.
"""

import re
from collections.abc import Iterator

from engine_server.shared.body_buffer import Body, contiguous

# Of a longer file: END_BYTES from both ends, and 20 digits between them.
KEPT_BYTES = 4096
END_BYTES = 2038
# The distance of the places at which a body is looked at. All files are found that are longer by PROBE_BYTES.
STEP_BYTES = KEPT_BYTES
PROBE_BYTES = 64
PROBE = re.compile(rb"[A-Za-z0-9+/=_\\-]{%d}" % PROBE_BYTES)
BASE64 = re.compile(rb"[A-Za-z0-9+/=_-]*+(?:\\[/nr][A-Za-z0-9+/=_-]*+)*+")
DATA_URL = re.compile(rb'data:[^",]{0,256};base64,')
DATA_KEY = re.compile(rb'"data"\s*:\s*\Z')
# Looked at before a string for its key.
KEY_BYTES = 16
BACKSLASH = ord("\\")


def abridge(body: Body) -> bytes | bytearray:
    """Return the body with each longer file cut to KEPT_BYTES, or the whole body if it has none.

    Two bodies that differ in the beginning, the end or the length of a file still do. What is JSON stays JSON of the
    same structure. It takes 0.15 us for each 4 KB of text.
    """
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    written = 0
    for file in long_files(body):
        first, last = file.start + END_BYTES, file.stop - END_BYTES
        if body[first - 1] == BACKSLASH:  # an escaped character is not cut
            first -= 1
        parts += view[written:first], b"%020d" % (last - first)
        written = last
    return b"".join((*parts, view[written:])) if parts else contiguous(body)


def long_files(body: Body) -> Iterator[range]:
    """Yield the place of the base64 of each longer file. Only its ends are looked at."""
    at = 0
    while at < len(body):
        file = file_around(body, at) if PROBE.match(body, at) is not None else None
        if file is None:
            at += STEP_BYTES
        else:
            yield file
            at = file.stop


def file_around(body: Body, at: int) -> range | None:
    """Return the place of the base64 around `at`; None if it is no file, or a short one."""
    quote = body.rfind(b'"', max(0, at - 2 * STEP_BYTES), at)
    if quote < 0:
        return None
    start = quote + 1
    if (url := DATA_URL.match(body, start)) is not None:
        start = url.end()
    elif DATA_KEY.search(body, max(0, quote - KEY_BYTES), quote) is None:
        return None
    end = body.find(b'"', at)
    if end - start < STEP_BYTES + PROBE_BYTES:
        return None
    first, last = start + END_BYTES, end - END_BYTES
    head = BASE64.match(body, start, first)
    # An escaped character at its end is left out.
    if head is None or head.end() < first - 1 or BASE64.fullmatch(body, last, end) is None:
        return None
    return range(start, end)
