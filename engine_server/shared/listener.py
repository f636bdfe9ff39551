"""A socket whose connections are accepted while there are places for them."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from engine_server.shared.places import Occupant, Places

log = logging.getLogger(__name__)

# Connections accepted in one turn of the event loop.
ACCEPTED_AT_ONCE = 64
# Until the next try after an error, such as a lack of file descriptors or of memory.
RETRY_SECONDS = 0.5
# Between two warnings.
WARNING_SECONDS = 60.0
HANDSHAKE_SECONDS = 20.0
# In which a new connection isn't closed for the next one, though it has sent nothing.
GRACE_SECONDS = 1.0


class Listener:
    """Accepts connections on a socket. While all places are taken, clients wait in the kernel's queue."""

    def __init__(
        self,
        sock: socket.socket,
        connection: Callable[[], Occupant],
        places: Places,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a protocol with `connection` for each connection that is accepted."""
        self._sock = sock
        self._connection = connection
        self._places = places
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._starts: set[asyncio.Task[None]] = set()
        self._warned = -WARNING_SECONDS
        self._closed = False
        sock.setblocking(False)
        self._listen()

    @property
    def port(self) -> int:
        """The port of a TCP socket."""
        port: int = self._sock.getsockname()[1]
        return port

    async def close(self) -> None:
        """Accept no more connections, and wait until those that were accepted are open; these stay.

        A TLS handshake that has not ended is given up.
        """
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        if self._tls is not None:
            for start in self._starts:
                start.cancel()
        if self._starts:
            await asyncio.wait(self._starts)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        if self._places.full:
            self._loop.remove_reader(self._sock)
            self._warn("all places for connections are taken; idle ones are closed, and new ones wait")
            self._places.wait(self._listen)
            return
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.remove_reader(self._sock)
                self._warn(f"can't accept connections: {error}")
                self._loop.call_later(RETRY_SECONDS, self._listen)
                return
            connection = self._connection()
            self._places.take(connection)
            start = self._loop.create_task(self._start(accepted, connection))
            self._starts.add(start)
            start.add_done_callback(self._starts.discard)
            if self._places.full:
                return

    async def _start(self, accepted: socket.socket, connection: Occupant) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError) as error:  # of the handshake
            log.info("a connection failed before its first request: %s", error)
            accepted.close()
            self._places.free(connection)
        else:
            self._loop.call_later(GRACE_SECONDS, self._places.end_grace, connection)

    def _warn(self, message: str) -> None:
        now = self._loop.time()
        if now - self._warned >= WARNING_SECONDS:
            self._warned = now
            log.warning(message)
