"""Sockets that programs listen on."""

import socket

from engine_server.contract.base.authority import authority

# All addresses of the machine, of IPv4 and, where the kernel has it, of IPv6.
EVERY_ADDRESS = "::"
# The same in the arguments of pods: engines of earlier releases take it for all of IPv4, and `::` for IPv6 alone.
EVERY_ADDRESS_IN_PODS = "0"


class ListenError(OSError):
    """An address on which this machine or user cannot listen; the message names it."""


def listen_on(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Return a listening TCP socket; port 0 takes a free one. Raises ListenError."""
    address = host
    if host in (EVERY_ADDRESS, EVERY_ADDRESS_IN_PODS):
        address = EVERY_ADDRESS if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == EVERY_ADDRESS
    try:
        return socket.create_server((address, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        raise ListenError(f"can't listen on {authority(host, port)}: {error}") from error
