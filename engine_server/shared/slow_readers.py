"""Clients that are slow to read: the memory that the kernel keeps for them, and the least that they have to take."""

import asyncio
import socket

# By itself the kernel would keep megabytes for each client, which count as the pod's memory.
UNSENT_BYTES = 128 * 1024
# The least that a client takes of an answer that waits for it, in bytes a second: a phone on a bad network has more.
LEAST_RATE = 1000


def limit_unsent_bytes(transport: asyncio.Transport) -> None:
    """Limit what the kernel keeps, where that is possible; bytes that are on their way to the client do not count."""
    connection = transport.get_extra_info("socket")
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
