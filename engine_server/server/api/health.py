"""GET /health and /ready: the answers that kubelets and routers act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from engine_server.server.gate import Drain, Gate

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost


async def health(host: EngineHost) -> Response:
    """Answer 200 unless the engine is dead or makes no progress, then 503: the pod should be restarted."""
    if failure := await host.failure():
        return JSONResponse({"status": "unhealthy", "reason": failure}, 503)
    return JSONResponse({"status": "alive"})


async def readiness(host: EngineHost, gate: Gate) -> Response:
    """Answer 200 if new requests are welcome, else 503 with the reason."""
    if await host.failure():
        return JSONResponse({"status": "unhealthy"}, 503)
    if gate.drain is not Drain.NONE:
        return JSONResponse({"status": "draining"}, 503)
    # A copy, since the thread of the start adds phases.
    seconds = dict(host.phase_seconds)
    if host.loading:
        percent = int(host.loaded * 100)
        return JSONResponse(
            {"status": "loading", "phase": host.phase, "percent": percent, "seconds": seconds}, 503
        )
    commit = {"commit": host.model.commit} if host.model.commit else {}
    return JSONResponse({"status": "ready", "seconds": seconds, **commit})
