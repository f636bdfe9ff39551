"""The endpoints for kubelets, routers and Prometheus, which answer at any time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from engine_server.contract.base.version import VERSION
from engine_server.server.api.health import health, readiness
from engine_server.telemetry.exposition import Exposition, Format, choose_format

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.gate import Gate

# The paths that never take a key: kubelets have none.
PROBES = ("/health", "/ping", "/ready")
METRICS = "/metrics"
UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"description": "The status and its reason"}}


class Scrapes:
    """The texts of /metrics, made in a thread of their own. Simultaneous scrapes share one, however many there are."""

    def __init__(self) -> None:
        self._exposition = Exposition()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._running: dict[Format, asyncio.Future[bytes]] = {}

    async def text(self, form: Format) -> bytes:
        running = self._running.get(form)
        if running is None or running.done():
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, self._exposition.render, form)
            self._running[form] = running
        return await asyncio.shield(running)


def routes(host: EngineHost, gate: Gate) -> APIRouter:
    router = APIRouter(tags=["operation"])
    scrapes = Scrapes()

    @router.get("/health", response_model=None, responses=UNAVAILABLE)
    async def get_health() -> Response:
        """Return 200 unless the engine is dead or makes no progress."""
        return await health(host)

    @router.get("/ready", response_model=None, responses=UNAVAILABLE)
    async def get_readiness() -> Response:
        """Return 200 if new requests are welcome, else 503 with the reason."""
        return await readiness(host, gate)

    # SageMaker asks by GET; vLLM takes both.
    @router.api_route("/ping", methods=["GET", "POST"], response_model=None, responses=UNAVAILABLE)
    async def ping() -> Response:
        """Return what /health returns, for SageMaker."""
        return await health(host)

    @router.get("/load", response_model=None)
    async def get_load() -> Response:
        """Return the number of requests in flight."""
        return JSONResponse({"server_load": gate.in_flight})

    @router.get(METRICS, response_model=None, response_class=PlainTextResponse)
    async def get_metrics(request: Request) -> Response:
        """Return the metrics for Prometheus, in OpenMetrics' format if the client accepts it."""
        form = choose_format(request.headers.get("accept", ""))
        return Response(await scrapes.text(form), media_type=form.content_type)

    @router.get("/version", response_model=None)
    async def get_version() -> Response:
        """Return the server's version."""
        return JSONResponse({"version": VERSION})

    return router
