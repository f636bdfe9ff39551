"""The access log: an id, a log line and metrics for each request, and never its content."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import Counter, Histogram
from starlette.datastructures import MutableHeaders

from engine_server.contract.wire.errors import has_anthropic_errors
from engine_server.shared import request_ids

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

# nginx's status for a client that disconnected before the end of its answer.
CLIENT_DISCONNECTED = 499

REQUESTS = Counter("http_requests", "HTTP requests by route and status.", ("handler", "method", "status"))
DURATION = Histogram(
    "http_request_duration_seconds",
    "Time from a request's head to the last byte of its answer.",
    ("handler", "method"),
    buckets=(0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)


class Access(msgspec.Struct):
    """One line of the log."""

    method: str
    # The path as declared.
    path: str
    status: int
    seconds: float
    request_id: str


def write_text(access: Access) -> None:
    logger.info(
        "%s %s %d %.3f s %s", access.method, access.path, access.status, access.seconds, access.request_id
    )


def write_json(access: Access) -> None:
    fields = msgspec.structs.asdict(access) | {"seconds": round(access.seconds, 6)}
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
    print(msgspec.json.encode(line).decode(), file=sys.stderr, flush=True)


WRITERS = {"text": write_text, "json": write_json}


class AccessLog:
    """ASGI middleware around all others. It keeps the client's X-Request-Id, or generates one.

    It removes the prefix under which a proxy publishes the server from a path, if the proxy has not removed it already,
    so that everything behind it sees one spelling of each path.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Collection[str],
        probes: Collection[str],
        unlogged: Collection[str] = (),
        write: Callable[[Access], None] = write_text,
        root_path: str = "",
    ) -> None:
        """routes: the paths as declared. probes: paths that are neither counted nor logged. unlogged: not logged.

        root_path: the prefix.
        """
        self._app = app
        self._prefix = root_path.rstrip("/") + "/"
        self._routes = frozenset(routes)
        self._probes = frozenset(probes)
        self._unlogged = frozenset(unlogged)
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._prefix) > 1 and scope["path"].startswith(self._prefix):
            scope = {**scope, "path": scope["path"][len(self._prefix) - 1 :]}
        if scope["path"] in self._probes:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status, complete = CLIENT_DISCONNECTED, False
        request_id = client_request_id(scope) or uuid.uuid4().hex
        # Error bodies of Anthropic's API repeat it.
        scope.setdefault("state", {})["request_id"] = request_id
        anthropic = has_anthropic_errors(scope["path"])

        async def record_and_send(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if anthropic:
                    headers["Request-Id"] = request_id
            elif not message.get("more_body", False):
                complete = True
            await send(message)

        try:
            await self._app(scope, receive, record_and_send)
        except Exception:
            status, complete = 500, True
            raise
        finally:
            seconds = time.perf_counter() - started
            method = scope["method"]
            handler = self._handler(scope)
            if not complete:
                status = CLIENT_DISCONNECTED
            REQUESTS.labels(handler, method, str(status)).inc()
            DURATION.labels(handler, method).observe(seconds)
            if scope["path"] not in self._unlogged:
                self._write(Access(method, handler, status, seconds, request_id))

    def _handler(self, scope: Scope) -> str:
        """Return the route's path as declared, so that metrics have no more series than there are routes."""
        if "route" in scope:
            return str(scope["route"].path)
        return scope["path"] if scope["path"] in self._routes else "none"


def client_request_id(scope: Scope) -> str | None:
    """Return the client's X-Request-Id, unless it is too long or has characters that don't belong in a log."""
    for name, value in scope["headers"]:
        if name == request_ids.FIELD:
            return value.decode() if request_ids.is_valid(value) else None
    return None
