"""Writing of a streamed answer's pieces, past the middlewares."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# The ASGI extension whose entry "writer" is a ChunkWriter. A body's start and last piece are ASGI messages, in
# which middlewares are interested; the pieces between them concern none.
CHUNKS = "fairlead.chunks"


class ChunkWriter:
    """The pieces of one answer on a connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._clock = asyncio.get_running_loop().time
        # Time of the last `write_now`; 0 before.
        self.written_at = 0.0

    async def write(self, data: bytes) -> None:
        """Write a piece, once the client has read enough of the earlier ones; do nothing if it has disconnected."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def is_free(self) -> bool:
        """True while the client is there, and has read enough of the earlier pieces."""
        cycle = self._cycle
        return not (cycle.flow.write_paused or cycle.disconnected)

    def write_now(self, data: bytes) -> None:
        """Write a piece; only while the line is free."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.written_at = self._clock()
