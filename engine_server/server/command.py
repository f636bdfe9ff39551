"""`fairlead engine MODEL`: serve one model over OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn
import uvloop

from engine_server.contract.bounds import CHOICES
from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import ENGINE_PORT
from engine_server.engine.arguments.flags import add_flags
from engine_server.engine.engine_args import AsyncEngineArgs, parse_size
from engine_server.requests.errors import EngineDeadError
from engine_server.server.application import build_application
from engine_server.server.engine_host import EngineHost
from engine_server.server.http.gate import Gate
from engine_server.server.http.protocol import Connection
from engine_server.server.open_files import raise_open_files_limit
from engine_server.server.settings import ApiSettings
from engine_server.server.shutdown import Shutdown

logger = logging.getLogger(__name__)

# Longer than the idle timeout of routers and load balancers, so that the server never closes a connection on which a
# request is just arriving.
KEEP_ALIVE_SECONDS = 90
# The default of --max-queue as a multiple of --max-num-seqs.
QUEUED_BATCHES = 8
# The time for writing the rest of the answers once all requests have ended.
FLUSH_SECONDS = 1.0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairlead engine", description="Serve one model over OpenAI's API.", allow_abbrev=False
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="0.0.0.0", help="address to listen on (default: %(default)s)")  # noqa: S104
    server.add_argument(
        "--port", type=int, default=ENGINE_PORT, help="port (default: %(default)s; 0: any free one)"
    )
    server.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time for requests in flight to finish after SIGTERM (default: %(default)g)",
    )
    server.add_argument(
        "--max-body-bytes",
        type=parse_size,
        default=32 << 20,
        metavar="SIZE",
        help="limit of a request's body (default: 32MiB)",
    )
    add_flags(parser.add_argument_group("answers"), ApiSettings)
    AsyncEngineArgs.add_cli_args(parser)
    return parser


def main(argv: list[str]) -> int:
    started = time.monotonic()
    arguments = parser()
    options = arguments.parse_args(argv)
    if not options.model:
        arguments.error("the following arguments are required: model")
    if options.max_queue is None:
        options.max_queue = default_max_queue(options.max_num_seqs)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    raise_open_files_limit()
    try:
        listener = _listen(options.host, options.port)
    except OSError as error:
        print(f"fairlead engine: can't listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    host = EngineHost(AsyncEngineArgs.from_cli_args(options), ApiSettings.of(options), started)
    status = uvloop.run(_serve(host, listener, options.drain_timeout, options.max_body_bytes))
    if host.thread_runs:
        # The interpreter's exit would wait for the start's thread, which can't be interrupted.
        sys.stderr.flush()
        os._exit(status)
    return status


def default_max_queue(max_num_seqs: int | None) -> int:
    """Return the default of --max-queue: several batches, and any single request in an idle server."""
    return max(QUEUED_BATCHES * (max_num_seqs or 0), CHOICES.limit)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, listener.getsockname()[1])
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server, with signals left to Shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(host: EngineHost, listener: socket.socket, drain_timeout: float, max_body_bytes: int) -> int:
    app, gate = build_application(host, max_body_bytes)
    server = _Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(FLUSH_SECONDS),
        )
    )
    shutdown = Shutdown(gate, drain_timeout, host.shut_down)
    http = asyncio.create_task(server.serve(sockets=[listener]))
    stop = asyncio.create_task(shutdown.run())
    engine = asyncio.create_task(host.run())
    await asyncio.wait((http, stop, engine), return_when=asyncio.FIRST_COMPLETED)
    status = stop.result() if stop.done() else 1
    if engine.done() and not stop.done():
        await report_end(engine, gate)
    server.should_exit = True
    server.force_exit = status > 1
    for task in (stop, engine):
        task.cancel()
    await http
    host.shut_down()  # in the event loop that the engine belongs to
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
