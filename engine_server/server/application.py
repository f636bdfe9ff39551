"""The ASGI application: the routes, and the middleware that a request passes on its way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response
from starlette.routing import Route

from engine_server.server.api import completions, invocations, models, service, tokenization
from engine_server.server.api.answer_format import load_format
from engine_server.server.api.chat import endpoint as chat
from engine_server.server.api.health import health, readiness
from engine_server.server.api.messages import endpoint as messages
from engine_server.server.api.pooling import classification, embeddings, pooling, ranking
from engine_server.server.api.responses import endpoint as responses
from engine_server.server.api.tasks import needs_task
from engine_server.server.http.access_log import AccessLog
from engine_server.server.http.answer_headers import AnswerHeaders
from engine_server.server.http.errors import add_error_handlers
from engine_server.server.http.gate import Gate
from engine_server.server.http.request_body import RequestBody

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from engine_server.server.engine_host import EngineHost


# Paths that answer at any time, and are no requests in flight.
OPERATIONAL = ("/health", "/ping", "/ready", "/metrics", "/version", "/load")


def build_application(host: EngineHost, max_body_bytes: int) -> tuple[ASGIApp, Gate]:
    """Return the application, and its gate, which a shutdown closes."""
    app = FastAPI(openapi_url=None)
    add_error_handlers(app)
    host.on_loaded.append(load_format)
    gate = Gate(RequestBody(app, max_body_bytes), host, OPERATIONAL)

    for generating in (chat, completions, messages, responses):
        app.include_router(generating.routes(host), dependencies=[needs_task(host, "generate")])
    for api in (classification, embeddings, invocations, models, pooling, ranking, tokenization):
        app.include_router(api.routes(host))
    app.include_router(service.routes(host, gate))

    @app.get("/health")
    async def get_health() -> Response:
        return await health(host)

    @app.get("/ready")
    async def get_readiness() -> Response:
        return await readiness(host, gate)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    paths = [route.path for route in app.routes if isinstance(route, Route)]
    # A request passes the access log, the answer's headers, the gate and the body's middleware, in this order.
    return AccessLog(AnswerHeaders(gate, host), paths), gate
