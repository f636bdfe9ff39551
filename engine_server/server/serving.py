"""The server process: its applications and sockets, the engine, and the shutdown, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import uvicorn

from engine_server.requests.errors import EngineDeadError
from engine_server.server.engine_host import EngineHost
from engine_server.server.gate import Gate
from engine_server.server.http.file_watch import FileWatch
from engine_server.server.http.protocol import Connection
from engine_server.server.http.tls import Tls
from engine_server.server.shutdown import Shutdown
from engine_server.shared.idle_timeout import DEFAULT_IDLE_TIMEOUT_SECONDS
from engine_server.shared.listener import Listener
from engine_server.shared.places import Places
from engine_server.shared.shares import Shares

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

# The time for writing the rest of the answers once all requests have ended.
FLUSH_SECONDS = 1.0
# Memory for what clients send before the answers to earlier requests.
INPUT_BYTES = 64 << 20


class Site(NamedTuple):
    """An application, and the socket that it is served on."""

    app: ASGIApp
    listener: socket.socket
    tls: Tls | None = None
    # That clients may have open.
    connections: int = sys.maxsize
    # Seconds without a request after which a connection is closed.
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT_SECONDS


class HttpServer(uvicorn.Server):
    """uvicorn's server, with signals left to Shutdown, and connections accepted while there are places for them."""

    def __init__(self, config: uvicorn.Config, places: Places) -> None:
        super().__init__(config)
        self._places = places

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        self.servers = []
        self._listeners = [
            Listener(sock, self._connection, self._places, self.config.ssl) for sock in sockets
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            await listener.close()
        await super().shutdown()

    def _connection(self) -> Connection:
        connection: Connection = self.config.http_protocol_class(  # type: ignore[call-arg, assignment]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(site: Site) -> HttpServer:
    tls, places = site.tls, Places(site.connections)
    return HttpServer(
        uvicorn.Config(
            site.app,
            http=partial(  # type: ignore[arg-type]
                Connection, input_shares=Shares(INPUT_BYTES), places=places
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=site.idle_timeout,
            timeout_graceful_shutdown=int(FLUSH_SECONDS),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls.context,
        ),
        places,
    )


class Server(NamedTuple):
    """All that runs in the server's event loop."""

    host: EngineHost
    gate: Gate
    sites: Sequence[Site]
    watches: Sequence[FileWatch]
    shutdown: Shutdown

    async def run(self) -> int:
        """Serve until a signal or the engine's end, and return the exit status."""
        servers = [http_server(site) for site in self.sites]
        http = [
            asyncio.create_task(server.serve(sockets=[site.listener]))
            for server, site in zip(servers, self.sites, strict=True)
        ]
        watching = [asyncio.create_task(watch.run()) for watch in self.watches]
        stop = asyncio.create_task(self.shutdown.run())
        engine = asyncio.create_task(self.host.run())
        await asyncio.wait((*http, stop, engine), return_when=asyncio.FIRST_COMPLETED)
        status = stop.result() if stop.done() else 1
        if engine.done() and not stop.done():
            await report_end(engine, self.gate)
        for server in servers:
            server.should_exit = True
            server.force_exit = status > 1
        for task in (stop, engine, *watching):
            task.cancel()
        await asyncio.gather(*http)
        self.host.shut_down()  # in the event loop that the engine belongs to
        return status


async def report_end(engine: asyncio.Task[BaseException], gate: Gate) -> None:
    """Log why the engine ended, and wait a moment for open streams and the next health check to report it."""
    error = engine.exception()
    if isinstance(error, ValueError):
        print(f"fairlead engine: {error}", file=sys.stderr, flush=True)
        return
    if isinstance(error, EngineDeadError) or error is None:
        logger.critical("the engine is dead: %s", error or engine.result())
    else:
        logger.critical("the engine did not start", exc_info=error)
        return
    await asyncio.sleep(FLUSH_SECONDS / 2)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS / 2):
            await gate.wait_until_idle()
