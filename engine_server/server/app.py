"""The routes, and what a request passes on its way to them."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_server.server.access import Access
from engine_server.server.chat import chat
from engine_server.server.completions import complete
from engine_server.server.errors import handle_errors
from engine_server.server.gate import Drain, Gate
from engine_server.server.intake import Intake
from engine_server.server.models import model_card, model_list
from engine_server.server.protocol import ChatCompletionRequest, CompletionRequest, parse
from engine_server.server.replies import json_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from engine_server.server.engine_host import EngineHost


def build_app(host: EngineHost, max_body_bytes: int) -> tuple[ASGIApp, Gate]:
    """The whole ASGI application, and its gate, which a shutdown closes."""
    app = FastAPI(openapi_url=None)
    handle_errors(app)
    # Outermost first: Access, Gate, Intake, the routes.
    gate = Gate(Intake(app, max_body_bytes), host)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        trace = host.trace_headers(request.headers)
        return await chat(host, parse(ChatCompletionRequest, await request.body()), trace)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        trace = host.trace_headers(request.headers)
        return await complete(host, parse(CompletionRequest, await request.body()), trace)

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(model_list(host))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return json_response(model_card(host, name))

    @app.get("/health")
    async def health() -> Response:
        if trouble := await host.trouble():
            return JSONResponse({"status": "unhealthy", "reason": trouble}, 503)
        return JSONResponse({"status": "alive"})

    @app.get("/ready")
    async def ready() -> Response:
        if await host.trouble():
            return JSONResponse({"status": "unhealthy"}, 503)
        if gate.drain is not Drain.NONE:
            return JSONResponse({"status": "draining"}, 503)
        if host.loading:
            return JSONResponse({"status": "loading", "phase": host.phase}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def show_version() -> Response:
        return JSONResponse({"version": version("fairlead")})

    return Access(gate, [route.path for route in app.routes if isinstance(route, Route)]), gate
