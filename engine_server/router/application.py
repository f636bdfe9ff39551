"""The public port: the paths of models, which are forwarded to engines, and the router's own pages."""

from collections.abc import Callable, Mapping
from typing import NoReturn
from urllib.parse import unquote_to_bytes

import msgspec

from engine_server.contract.wire.paths import MODEL_PATHS
from engine_server.router import errors
from engine_server.router.callers.account import Caller, usable_route
from engine_server.router.callers.callers import Callers
from engine_server.router.errors import RequestError
from engine_server.router.http.client_address import FORWARDED_FOR, ClientAddresses
from engine_server.router.http.cross_origin import CrossOrigin
from engine_server.router.http.exchange import JSON, Answer, Exchange
from engine_server.router.rejections import Reason, Sender
from engine_server.router.requests.attempts import Forwarder
from engine_server.router.requests.observation import Observation
from engine_server.router.routing.directory import Directory, Route, Target
from engine_server.shared.hosts import Hosts

FORWARDED = frozenset(path.encode() for path in MODEL_PATHS)
MODELS = b"/v1/models"
ONE_MODEL = b"/v1/models/"
# Health checks of load balancers that know no other path get an empty answer from it.
ROOT = b"/"
PROBES = (ROOT, b"/health", b"/ready")
OWN_PAGES = (*PROBES, MODELS)
# Returns "ready", or a word for the reason why not.
Readiness = Callable[[], str]


class Application:
    """Answers each request by its path, which is compared as it was received: engines have paths that nobody may call.

    Neither percent encodings nor `..` are resolved, so no spelling of another path passes as one of these.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        callers: Callers,
        directory: Directory,
        readiness: Readiness,
        observation: Observation,
        cross_origin: CrossOrigin | None,
        addresses: ClientAddresses,
        hosts: Hosts | None,
    ) -> None:
        """Answer pages of the origins in `cross_origin`, if there are any, and requests for `hosts`, or for all."""
        self._forward = forwarder.forward
        self._callers = callers
        self._directory = directory
        self._readiness = readiness
        self._observation = observation
        self._cross_origin = cross_origin
        self._addresses = addresses
        self._hosts = hosts

    def answer(self, exchange: Exchange) -> Answer:
        """Return the coroutine that answers the exchange's request."""
        request = exchange.request
        if self._hosts is not None and not self._hosts.accept(request.fields.get(b"host", b"")):
            return self._refuse_host(exchange)
        if self._cross_origin is not None:
            exchange.lines += self._cross_origin.lines(request.fields)
        if request.method == b"POST" and (request.target in FORWARDED or request.path in FORWARDED):
            return self._forward(exchange)
        return self._respond(exchange)

    def check_sender(self, fields: Mapping[bytes, bytes]) -> None:
        """Raise RequestError (401) if the sender has no valid key."""
        self._callers.identify(fields)

    def owner(self, fields: Mapping[bytes, bytes], peer: str) -> str:
        """Return the name of the sender's key, or else its address."""
        return self._callers.name(fields) or self.address(peer, fields.get(FORWARDED_FOR))

    def address(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the address of a client on a connection from `peer`, which may be a trusted proxy's."""
        return self._addresses.find(peer, forwarded_for)

    async def refuse(self, exchange: Exchange, error: RequestError) -> None:
        """Answer a request that was not received whole. Raises `error`."""
        if self._cross_origin is not None:
            exchange.lines += self._cross_origin.lines(exchange.request.fields)
        self._reject(exchange, error)

    async def _refuse_host(self, exchange: Exchange) -> None:
        self._observation.metrics.rejections.add(Sender.CLIENT, Reason.UNKNOWN_HOST)
        self._reject(exchange, errors.unknown_host(exchange.request.fields[b"host"]))

    async def _respond(self, exchange: Exchange) -> None:
        method, path = exchange.request.method, exchange.request.path
        methods = allowed_methods(path)
        if methods is None:
            self._reject(exchange, errors.unknown_path(path))
        if method == b"OPTIONS":
            self._respond_preflight(exchange, methods)
        elif method in (b"GET", b"HEAD") and path in PROBES:
            exchange.respond(*self._probe(path), JSON)
        elif method in (b"GET", b"HEAD") and path not in FORWARDED:
            with self._observation.begin_own(exchange.request) as lifecycle:
                exchange.respond(
                    200, self._models(path, self._callers.identify(exchange.request.fields)), JSON
                )
                lifecycle.record_answer(200)
        else:
            self._reject(exchange, errors.wrong_method(path, methods))

    def _respond_preflight(self, exchange: Exchange, methods: bytes) -> None:
        lines = [b"Allow: %b\r\n" % methods]
        if self._cross_origin is not None:
            lines += self._cross_origin.preflight_lines(exchange.request.fields, methods)
        exchange.respond_empty(lines)

    def _reject(self, exchange: Exchange, error: RequestError) -> NoReturn:
        """Count and log a request that is not routed, and raise its error."""
        with self._observation.begin_own(exchange.request):
            raise error

    def _probe(self, path: bytes) -> tuple[int, bytes]:
        """Return status and body, JSON or nothing, of a page that is neither counted nor logged."""
        if path == ROOT:
            return 200, b""
        if path == b"/health":
            return 200, b'{"status":"ok"}'
        status = self._readiness()
        return 200 if status == "ready" else 503, msgspec.json.encode({"status": status})

    def _models(self, path: bytes, caller: Caller) -> bytes:
        """Return the JSON of all models or of one. Raises RequestError (404) for an unknown model."""
        if path == MODELS:
            routes = ((name, self._directory.resolve(name)) for name in caller.models(self._directory))
            cards = [model_card(name, route, self._directory) for name, route in routes if route is not None]
            return msgspec.json.encode(ModelList(data=cards))
        return self._model(path.removeprefix(ONE_MODEL), caller)

    def _model(self, quoted_name: bytes, caller: Caller) -> bytes:
        name = unquote_to_bytes(quoted_name).decode(errors="replace")
        route = usable_route(name, caller, self._directory)
        return msgspec.json.encode(model_card(name, route, self._directory))


def allowed_methods(path: bytes) -> bytes | None:
    """Return the methods that a path takes, as the field `Allow` lists them, or None for an unknown path."""
    if path in FORWARDED:
        return b"POST, OPTIONS"
    if path in OWN_PAGES or path.startswith(ONE_MODEL):
        return b"GET, HEAD, OPTIONS"
    return None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the shape of OpenAI's API."""

    id: str
    object: str = "model"
    # Seconds since the epoch.
    created: int
    owned_by: str = "fairlead"
    # Tokens of prompt and answer; None until an engine has reported it.
    max_model_len: int | None = None
    # Of an adapter: a name of the deployment that has it.
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/models`."""

    object: str = "list"
    data: list[ModelCard]


def model_card(name: str, route: Route, directory: Directory) -> ModelCard:
    """Return the card of a deployment, or of an adapter, under one of its names."""
    base = None if route.adapter is None else directory.route(Target(route.deployment.key))
    parent = None if base is None else directory.names(base)[0]
    contexts = [one.reported_load.context for one in route.replicas if one.reported_load.context]
    return ModelCard(
        id=name,
        created=int(route.deployment.created),
        max_model_len=min(contexts, default=None),
        parent=parent,
    )
