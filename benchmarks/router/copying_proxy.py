"""A proxy on uvloop that copies bytes: the floor of what a router in Python needs for a chunk.

python -m benchmarks.router.copying_proxy PORT ENGINE_PORT [ENGINE_PORT ...]

Each connection of a client gets one to an engine, which take turns.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from itertools import cycle
from typing import cast

import uvloop


class Copy(asyncio.Protocol):
    """One end of a connection through the proxy, whose bytes are written to the other end."""

    def __init__(self, other: asyncio.Transport) -> None:
        self._other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        write_at_once(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        self._other.pause_reading()

    def resume_writing(self) -> None:
        self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._other.close()


class Client(asyncio.Protocol):
    """A client's end until it has sent its first bytes, and an engine is connected."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        write_at_once(self._transport)

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        self._connecting = asyncio.create_task(self._connect(data))

    async def _connect(self, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        engine, _ = await loop.create_connection(
            lambda: Copy(self._transport), "127.0.0.1", self._engine_port
        )
        engine.write(first)
        self._transport.set_protocol(Copy(engine))
        self._transport.resume_reading()


def write_at_once(transport: asyncio.Transport) -> None:
    """Have uvloop write immediately, as the router does, not at the end of the loop's turn."""
    transport.set_write_buffer_limits(0)


async def serve(port: int, engine_ports: Iterator[int]) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    await loop.create_server(lambda: Client(next(engine_ports)), "127.0.0.1", port, backlog=4096)
    await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy bytes between clients and engines.")
    parser.add_argument("port", type=int)
    parser.add_argument("engine_ports", type=int, nargs="+")
    flags = parser.parse_args()
    uvloop.run(serve(flags.port, cycle(flags.engine_ports)))


if __name__ == "__main__":
    main()
