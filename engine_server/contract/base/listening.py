"""Sockets that programs listen on."""

import socket


class ListenError(OSError):
    """An address on which this machine or user cannot listen; the message names it."""


def listen_on(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Return a listening TCP socket; port 0 takes a free one. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as error:
        raise ListenError(f"can't listen on {host}:{port}: {error}") from error
