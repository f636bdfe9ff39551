"""The kernel's memory for clients that don't read."""

import asyncio
import socket

import pytest

from engine_server.shared.slow_readers import UNSENT_BYTES, limit_unsent_bytes


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no such limit")
async def test_unsent_bytes_of_a_tcp_connection_are_limited():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

        limit_unsent_bytes(writer.transport)

        connection = writer.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
        writer.close()


async def test_connection_through_a_unix_socket_has_no_limit_and_goes_on():
    own, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=own)

    limit_unsent_bytes(writer.transport)

    with other:
        other.sendall(b"ok")
        assert await reader.readexactly(2) == b"ok"
    writer.close()
