"""Writing of a streamed answer's pieces, past the middlewares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# The ASGI extension whose entry "write" is a WriteChunk. A body's start and last piece are ASGI messages, in
# which middlewares are interested; the pieces between them concern none.
CHUNKS = "fairlead.chunks"
WriteChunk = Callable[[bytes], Awaitable[None]]


class ChunkWriter:
    """The pieces of one answer on a connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    async def write(self, data: bytes) -> None:
        """Write a piece, once the client has read enough of the earlier ones; do nothing if it has disconnected."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
