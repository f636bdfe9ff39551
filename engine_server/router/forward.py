"""A request's way to an engine and back."""

from collections.abc import Generator
from functools import partial

import msgspec

from . import errors
from .downstream import Answer, Downstream
from .endpoints import Directory, Endpoint
from .health import Health
from .lifecycle import Lifecycle, in_flight
from .metrics import Metrics
from .relay import Outcome
from .upstream import Pools
from .wire import Request

MOST_UNANSWERED = 3  # a request that engines die of must not walk through all of them


class Routing(msgspec.Struct):
    """All that the router wants to know of a body."""

    model: str


_routing = msgspec.json.Decoder(Routing)


def model_of(body: bytearray) -> str:
    try:
        return _routing.decode(body).model
    except msgspec.ValidationError as error:
        raise errors.bad_body(f"The body does not say which model it is for: {error}", "model") from None
    except msgspec.DecodeError as error:
        raise errors.bad_body(f"The body is not JSON: {error}") from None


class Forwarder:
    def __init__(self, directory: Directory, pools: Pools, health: Health, metrics: Metrics) -> None:
        self._directory = directory
        self._pools = pools
        self._health = health
        self._metrics = metrics

    def forward(self, request: Request, client: Downstream) -> Answer:
        """Try one endpoint after the other, until one has begun to answer."""
        if request.method != b"POST":
            raise errors.wrong_method(request.target.partition(b"?")[0], b"POST")
        with Lifecycle(self._metrics) as life:
            model = model_of(request.body)
            route = self._directory.resolve(model)
            if route is None:
                raise errors.unknown_model(model, list(self._directory.models()))
            life.model = model
            message = request.message()
            tried: list[Endpoint] = []
            unanswered = 0
            endpoint = route.pick(in_flight)
            while endpoint is not None:
                life.visit(endpoint)
                tried.append(endpoint)
                outcome = yield from self._ask(endpoint, message, client, life, tried)
                if outcome == "finished":
                    return
                if outcome == "cut":
                    self._metrics.interrupted += 1
                    client.cut()
                    return
                unanswered += outcome == "unanswered"
                if unanswered == MOST_UNANSWERED:
                    raise errors.no_answer(model, unanswered)
                self._metrics.retries[outcome] += 1
                endpoint = self._another(model, tried)
            raise errors.no_replica(model)

    def _another(self, model: str, tried: list[Endpoint]) -> Endpoint | None:
        route = self._directory.resolve(model)  # anew: it may have changed since the last try
        return route.pick(in_flight, tried) if route else None

    def _ask(
        self, endpoint: Endpoint, message: bytes, client: Downstream, life: Lifecycle, tried: list[Endpoint]
    ) -> Generator[None, None, Outcome]:
        """One endpoint's turn. A connection that was kept alive may be closed just as we write to it: if one
        ends without a byte, a new one gets the request."""
        pool = self._pools[endpoint]
        connection, fresh, sent = pool.take(), False, False
        while True:
            if connection is None:
                try:
                    connection, fresh = (yield from pool.connect(client)), True
                except OSError as error:
                    self._health.eject(endpoint, str(error) or "it does not answer a connect")
                    return "unanswered" if sent else "unreachable"
            try:
                connection.send(message)  # first, so that the engine works while we get ready for its answer
                relay = connection.listen(client, life, partial(self._another, life.model, tried))
                yield
            finally:
                connection.release(client)
            outcome = relay.outcome or "unanswered"
            if outcome == "refused" or (outcome == "finished" and life.status == 503):
                self._health.eject(endpoint, "it answers 503")
            if outcome != "unanswered" or fresh:
                return outcome
            sent = True
            connection = None
