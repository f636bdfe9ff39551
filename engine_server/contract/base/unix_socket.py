"""Addresses of servers that listen on a Unix socket: unix:/PATH."""

import os
import sys

SCHEME = "unix:"
# The kernel's structure has 108 bytes for a path, or 104, with a zero at the end.
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103


def path_of(address: str) -> str:
    """Return the path in unix:/PATH. Raises ValueError for anything else, and for a path that no socket can have."""
    path = address.removeprefix(SCHEME)
    if path == address or not path.startswith("/") or not path.isprintable():
        raise ValueError(f"a Unix socket is {SCHEME}/PATH with printable characters, not {address!r}")
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise ValueError(f"the path of a Unix socket has at most {MAX_PATH_BYTES} bytes, not {size}: {path}")
    return path


def address_of(path: str) -> str:
    """Return the address of a path. Raises ValueError if no socket can have the path."""
    address = SCHEME + path
    path_of(address)
    return address
