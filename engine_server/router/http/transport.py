"""Socket options of the connections to clients and engines."""

import array
import asyncio
import fcntl
import socket
import sys
import termios
from typing import NamedTuple

KEEPALIVE_PROBES = 4


class LossTimes(NamedTuple):
    """Times in seconds by which the kernel finds out that the peer's machine is gone."""

    # Silence before the first probe, and between two probes.
    idle: int
    interval: int
    # Time in which the peer acknowledges neither data nor probes. It also ends connections whose peer reads nothing.
    unacknowledged: int


PATIENT = LossTimes(idle=15, interval=5, unacknowledged=30)
# For a connection on which the router only receives.
IMPATIENT = LossTimes(idle=2, interval=1, unacknowledged=5)


def configure_transport(transport: asyncio.Transport) -> None:
    """Write without delay, and detect a peer whose machine is gone, however long an answer takes.

    With a write buffer limit of 0, uvloop writes at once and not at the event loop's next turn.
    """
    transport.set_write_buffer_limits(0)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PATIENT.idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PATIENT.interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def detect_loss(transport: asyncio.Transport, times: LossTimes) -> None:
    """Close the connection if the peer acknowledges nothing for as long as `times` say."""
    sock = transport.get_extra_info("socket")
    if transport.is_closing() or not is_tcp(sock):
        return
    # uvloop's object makes a socket for each call, which takes longer than all three.
    own = socket.SocketType(sock.family, sock.type, sock.proto, sock.fileno())
    try:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, times.idle)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, times.interval)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * times.unacknowledged)
    finally:
        own.detach()


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
