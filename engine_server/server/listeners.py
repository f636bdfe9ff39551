"""The sockets that the server listens on."""

from __future__ import annotations

import logging
import socket
import stat
from pathlib import Path

from engine_server.contract.base.authority import authority
from engine_server.contract.base.listening import ListenError, listen_on
from engine_server.server.arguments import ServerArgs

logger = logging.getLogger(__name__)

BACKLOG = 2048


def listen(args: ServerArgs) -> socket.socket:
    """Return the socket of the API. Raises ListenError."""
    if args.uds is not None:
        return listen_on_path(args.uds)
    return listen_on_port(args.host, args.port, args.scheme)


def listen_on_port(host: str, port: int, scheme: str, name: str = "") -> socket.socket:
    """Return a TCP socket, and log its URL and the name of what it serves. Raises ListenError."""
    listener = listen_on(host, port, BACKLOG)
    logger.info("%slistening on %s://%s", name, scheme, authority(*listener.getsockname()[:2]))
    return listener


def listen_on_path(path: Path) -> socket.socket:
    """Return a Unix socket, in place of one that a server which has ended left behind."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not answers(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"can't listen on {path}: {error}") from error
    logger.info("listening on unix:%s", path)
    return listener


def answers(path: Path) -> bool:
    """Return True if a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
