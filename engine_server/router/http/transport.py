"""Socket options of the connections to clients and engines."""

import array
import asyncio
import fcntl
import socket
import sys
import termios

KEEPALIVE_IDLE_SECONDS = 15
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 4
UNACKNOWLEDGED_MILLISECONDS = 30_000


def configure_transport(transport: asyncio.Transport) -> None:
    """Write without delay, and detect a peer whose machine is gone, however long an answer takes.

    With a write buffer limit of 0, uvloop writes at once and not at the event loop's next turn.
    """
    transport.set_write_buffer_limits(0)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def limit_unacknowledged_time(transport: asyncio.Transport) -> None:
    """Close the connection if the peer acknowledges nothing for 30 s."""
    sock = transport.get_extra_info("socket")
    if is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)


def is_tcp(sock: socket.socket) -> bool:
    """Return True for a socket that has Linux's options of TCP."""
    return sys.platform == "linux" and sock.family != socket.AF_UNIX


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that were written and that the peer has not acknowledged.

    The kernel's part counts where it can be asked: it may be megabytes, so that a slow peer frees none of ours for
    minutes.
    """
    waiting = transport.get_write_buffer_size()
    if (
        sys.platform == "linux"
        and (sock := transport.get_extra_info("socket")) is not None
        and sock.fileno() >= 0
    ):
        kernel = array.array("i", [0])
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, kernel)
        waiting += kernel[0]
    return waiting


def peer_address(transport: asyncio.Transport) -> str:
    """Return the address of the peer; empty if the connection is lost already."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
