"""What the router answers itself, and what it sends on."""

from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import msgspec

from . import errors
from .downstream import Answer, Downstream
from .endpoints import Directory, Route
from .forward import Forwarder
from .metrics import Exposition
from .wire import Request

JSON = b"application/json"
MODELS = b"/v1/models"
ONE_MODEL = b"/v1/models/"
Readiness = Callable[[], str]  # "ready", or the word for why not


class Application:
    def __init__(
        self, forwarder: Forwarder, directory: Directory, exposition: Exposition, readiness: Readiness
    ) -> None:
        self._forward = forwarder.forward
        self._directory = directory
        self._exposition = exposition
        self._readiness = readiness

    def answer(self, request: Request, client: Downstream) -> Answer:
        if request.target.startswith(b"/v1/") and not request.target.startswith(MODELS):
            return self._forward(request, client)
        return self._respond(request, client)

    def _respond(self, request: Request, client: Downstream) -> Answer:
        path = request.target.partition(b"?")[0]
        status, body, content_type = self._page(path)
        if request.method not in (b"GET", b"HEAD"):
            raise errors.wrong_method(path, b"GET, HEAD")
        client.respond(status, body, content_type)
        yield from ()  # it waits for nothing

    def _page(self, path: bytes) -> tuple[int, bytes, bytes]:
        if path == b"/health":
            return 200, b'{"status":"ok"}', JSON
        if path == b"/ready":
            status = self._readiness()
            return 200 if status == "ready" else 503, msgspec.json.encode({"status": status}), JSON
        if path == b"/metrics":
            return 200, self._exposition.text(), b"text/plain; version=0.0.4; charset=utf-8"
        if path == MODELS:
            cards = [card(*model) for model in self._directory.models().items()]
            return 200, msgspec.json.encode({"object": "list", "data": cards}), JSON
        if path.startswith(ONE_MODEL):
            return 200, self._model(path.removeprefix(ONE_MODEL)), JSON
        raise errors.unknown_path(path)

    def _model(self, quoted: bytes) -> bytes:
        name = unquote_to_bytes(quoted).decode(errors="replace")
        route = self._directory.resolve(name)
        if route is None:
            raise errors.unknown_model(name, list(self._directory.models()))
        return msgspec.json.encode(card(name, route))


def card(name: str, route: Route) -> dict[str, object]:
    created = int(route.deployment.created)
    return {"id": name, "object": "model", "created": created, "owned_by": "fairlead"}
