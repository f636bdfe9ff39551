"""What the router answers itself, and what it sends on."""

from calendar import timegm
from collections.abc import Callable
from datetime import datetime
from urllib.parse import unquote_to_bytes

import msgspec

from . import errors
from .downstream import Downstream
from .endpoints import Directory, Route
from .forward import Forwarder
from .metrics import Exposition
from .wire import Request

READS = (b"GET", b"HEAD")
MODELS = b"/v1/models"
Readiness = Callable[[], str]  # "ready", or the word for why not


class Application:
    def __init__(
        self, forwarder: Forwarder, directory: Directory, exposition: Exposition, readiness: Readiness
    ) -> None:
        self._forward = forwarder.forward
        self._directory = directory
        self._exposition = exposition
        self._readiness = readiness

    async def answer(self, request: Request, client: Downstream) -> None:
        path = request.path
        if path.startswith(b"/v1/") and not path.startswith(MODELS):
            if request.method != b"POST":
                raise errors.wrong_method(path, b"POST")
            await self._forward(request, client)
        elif path == MODELS or path.startswith(MODELS + b"/"):
            expect_read(request)
            client.respond(200, self._models(path.removeprefix(MODELS + b"/")))
        elif path == b"/health":
            expect_read(request)
            client.respond(200, b'{"status":"ok"}')
        elif path == b"/ready":
            expect_read(request)
            status = self._readiness()
            client.respond(200 if status == "ready" else 503, msgspec.json.encode({"status": status}))
        elif path == b"/metrics":
            expect_read(request)
            client.respond(200, self._exposition.text(), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            raise errors.unknown_path(request.method, path)

    def _models(self, asked: bytes) -> bytes:
        models = self._directory.models()
        if asked == MODELS:
            return msgspec.json.encode({"object": "list", "data": [card(*item) for item in models.items()]})
        name = unquote_to_bytes(asked).decode(errors="replace")
        route = self._directory.resolve(name)
        if route is None:
            raise errors.unknown_model(name, list(models))
        return msgspec.json.encode(card(name, route))


def card(name: str, route: Route) -> dict[str, object]:
    created = route.deployment.created
    seconds = timegm(datetime.fromisoformat(created).utctimetuple()) if created else 0
    return {"id": name, "object": "model", "created": seconds, "owned_by": "fairlead"}


def expect_read(request: Request) -> None:
    if request.method not in READS:
        raise errors.wrong_method(request.path, b"GET, HEAD")
