"""The paths that the router serves: its own pages, and all that is forwarded to engines."""

from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import msgspec

from engine_server.router import errors
from engine_server.router.exposition import Exposition
from engine_server.router.http.exchange import JSON, Answer, Exchange
from engine_server.router.requests.attempts import Forwarder
from engine_server.router.routing.directory import Directory, Route

PROMETHEUS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
MODELS = b"/v1/models"
ONE_MODEL = b"/v1/models/"
# Returns "ready", or a word for the reason why not.
Readiness = Callable[[], str]


class Application:
    """Answers each request by its path."""

    def __init__(
        self, forwarder: Forwarder, directory: Directory, exposition: Exposition, readiness: Readiness
    ) -> None:
        self._forward = forwarder.forward
        self._directory = directory
        self._exposition = exposition
        self._readiness = readiness

    def answer(self, exchange: Exchange) -> Answer:
        """Return the coroutine that answers the exchange's request."""
        target = exchange.request.target
        if target.startswith(b"/v1/") and not target.startswith(MODELS):
            return self._forward(exchange)
        return self._respond(exchange)

    async def _respond(self, exchange: Exchange) -> None:
        path = exchange.request.target.partition(b"?")[0]
        status, body, content_type = self._page(path)
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise errors.wrong_method(path, b"GET, HEAD")
        exchange.respond(status, body, content_type)

    def _page(self, path: bytes) -> tuple[int, bytes, bytes]:
        """Return status, body and content type. Raises RequestError (404) for an unknown path or model."""
        if path == b"/health":
            return 200, b'{"status":"ok"}', JSON
        if path == b"/ready":
            status = self._readiness()
            return 200 if status == "ready" else 503, msgspec.json.encode({"status": status}), JSON
        if path == b"/metrics":
            return 200, self._exposition.text(), PROMETHEUS_TEXT
        if path == MODELS:
            cards = [model_card(name, route) for name, route in self._directory.models().items()]
            return 200, msgspec.json.encode(ModelList(data=cards)), JSON
        if path.startswith(ONE_MODEL):
            return 200, self._model(path.removeprefix(ONE_MODEL)), JSON
        raise errors.unknown_path(path)

    def _model(self, quoted_name: bytes) -> bytes:
        name = unquote_to_bytes(quoted_name).decode(errors="replace")
        route = self._directory.resolve(name)
        if route is None:
            raise errors.unknown_model(name, list(self._directory.models()))
        return msgspec.json.encode(model_card(name, route))


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the shape of OpenAI's API."""

    id: str
    object: str = "model"
    # Seconds since the epoch.
    created: int
    owned_by: str = "fairlead"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/models`."""

    object: str = "list"
    data: list[ModelCard]


def model_card(name: str, route: Route) -> ModelCard:
    """Return the card of a deployment under one of its names."""
    return ModelCard(id=name, created=int(route.deployment.created))
