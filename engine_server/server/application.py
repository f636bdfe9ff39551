"""The ASGI applications: their routes, and the middleware that a request passes on its way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from engine_server.contract.base.version import VERSION
from engine_server.server.admission import Admission
from engine_server.server.api import (
    admin,
    completions,
    invocations,
    models,
    operation,
    server_info,
    tokenization,
)
from engine_server.server.api.chat import endpoint as chat
from engine_server.server.api.messages import endpoint as messages
from engine_server.server.api.openapi import document
from engine_server.server.api.pooling import classification, embeddings, pooling, ranking
from engine_server.server.api.responses import endpoint as responses
from engine_server.server.api.tasks import needs_task
from engine_server.server.gate import Gate
from engine_server.server.http.access_log import WRITERS, AccessLog
from engine_server.server.http.api_keys import ApiKeys, KeyCheck
from engine_server.server.http.errors import add_error_handlers
from engine_server.server.http.request_body import RequestBody
from engine_server.server.http.web_pages import CrossOrigin, HostCheck, NoPages
from engine_server.shared.hosts import Hosts, hosts_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from engine_server.server.arguments import ServerArgs
    from engine_server.server.engine_host import EngineHost

# The APIs whose requests the gate admits and counts.
GENERATING = (chat, completions, messages, responses)
OTHERS = (classification, embeddings, invocations, models, pooling, ranking, server_info, tokenization)
# Room for a list of adapters with long names and URIs.
ADMIN_BODY_BYTES = 1 << 18


def build_application(host: EngineHost, args: ServerArgs, keys: ApiKeys) -> tuple[ASGIApp, Gate]:
    """Return the application, and its gate, which a shutdown closes.

    A request passes five layers: the access log, which removes the root path; the check of the host, on a loopback
    address; CORS; the admission by key and gate; and the checks of the body, which is read whole.
    """
    app = FastAPI(
        title="Fairlead",
        version=VERSION,
        root_path=args.root_path,
        openapi_url=None if args.disable_fastapi_docs else "/openapi.json",
        redoc_url=None,
    )
    add_error_handlers(app)
    gate = Gate(host)
    operational = operation.routes(host, gate)
    # Before the other routers are included, the application has the paths of its documentation alone.
    exempt = paths_of(app, operational)
    generating = [api.routes(host) for api in GENERATING]
    others = [operational, *(api.routes(host) for api in OTHERS)]
    for router in generating:
        app.include_router(router, dependencies=[needs_task(host, "generate")])
    for router in others:
        app.include_router(router)
    routers = [*generating, *others]
    document(app, routers, keys.required)

    public = operation.PROBES if args.api_key_for_metrics else (*operation.PROBES, operation.METRICS)
    body = RequestBody(app, args.max_body_bytes)
    cors = CrossOrigin(
        Admission(body, host, gate, keys, public=public, exempt=exempt),
        args.allowed_origins,
        methods=args.allowed_methods,
        headers=args.allowed_headers,
        credentials=args.allow_credentials,
    )
    hosts = None if args.uds is not None else hosts_of(args.host, args.allow_host or ())
    logged = AccessLog(
        cors if hosts is None else HostCheck(cors, hosts),
        paths_of(app, *routers),
        probes=(*operation.PROBES, operation.METRICS),
        unlogged=args.disable_access_log_for_endpoints,
        write=WRITERS[args.access_log_format],
        root_path=args.root_path,
    )
    return logged, gate


def admin_application(host: EngineHost, keys: ApiKeys, hosts: Hosts | None = None) -> ASGIApp:
    """Return the application of the admin port, whose requests often have no body, and never come from web pages."""
    app = FastAPI(openapi_url=None)
    add_error_handlers(app)
    router = admin.routes(host)
    app.include_router(router)
    body = RequestBody(app, ADMIN_BODY_BYTES, any_content_type=True)
    checked = NoPages(KeyCheck(body, keys) if keys.required else body)
    return AccessLog(checked if hosts is None else HostCheck(checked, hosts), paths_of(router), probes=())


def paths_of(*routers: FastAPI | APIRouter) -> list[str]:
    """Return the paths of the routers' own routes, as they were declared."""
    return [route.path for router in routers for route in router.routes if isinstance(route, Route)]
