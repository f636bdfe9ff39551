"""The attempts to have a request answered, and every decision on what follows each."""

from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.upstream import EngineConnection, Pools
from engine_server.router.metrics import Metrics
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.relay import Outcome, Relay
from engine_server.router.routing.directory import Directory
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey, decode_key
from engine_server.router.routing.selection import Selector

# A request that crashes engines must not reach all of them.
MAX_UNANSWERED = 3


class Forwarder:
    """Sends requests to endpoints of the deployments that they name."""

    def __init__(self, directory: Directory, health: Health, pools: Pools, metrics: Metrics) -> None:
        self._directory = directory
        self._health = health
        self._selector = Selector(directory, health)
        self._pools = pools
        self._metrics = metrics

    async def forward(self, exchange: Exchange) -> None:
        """Answer a request with an engine's answer. Raises RequestError if no engine gives one."""
        request = exchange.request
        if request.method != b"POST":
            raise errors.wrong_method(request.target.partition(b"?")[0], b"POST")
        with Lifecycle(self._metrics) as lifecycle:
            key = decode_key(request.body)
            message = request.message()
            tried: list[Endpoint] = []
            unanswered = 0
            outcome: Outcome | None = None
            reconnect = False
            while True:
                # Pick an endpoint, unless the last one gets the request again.
                if not reconnect:
                    picked = self._selector.pick(key, tried)
                    if picked is None:
                        raise self._no_endpoint(key, tried, lifecycle)
                    endpoint = picked
                    if outcome is not None:
                        self._metrics.retries[outcome] += 1
                    lifecycle.model = key.model
                    lifecycle.visit(endpoint)
                    tried.append(endpoint)

                # Connect, unless a kept connection can be used.
                connection = None if reconnect else self._pools[endpoint].take()
                reused = connection is not None
                if connection is None:
                    connection = await self._connect(endpoint, exchange)

                # Send, and relay the answer. Sending comes first, so that the engine works while the relay is set up.
                if connection is None:
                    outcome = "unanswered" if reconnect else "unreachable"
                else:
                    try:
                        connection.send(message)
                        relay = Relay(exchange, lifecycle)
                        connection.receive(relay)
                        exchange.source = connection.transport
                        await relay
                        if relay.held:
                            self._health.eject(endpoint, "it answered 503")
                            if self._selector.pick(key, tried) is None:
                                await relay.pass_on()
                        outcome = "refused" if relay.held else relay.outcome
                    finally:
                        exchange.source = None
                        connection.release()

                # Decide.
                if outcome == "finished":
                    return
                if outcome == "cut":
                    self._metrics.interrupted += 1
                    exchange.cut()
                    return
                # The engine may have closed a kept connection just as it was used: it gets the request once more.
                reconnect = outcome == "unanswered" and reused
                if outcome == "unanswered" and not reused:
                    unanswered += 1
                    if unanswered == MAX_UNANSWERED:
                        raise errors.no_answer(key.model, unanswered)

    async def _connect(self, endpoint: Endpoint, exchange: Exchange) -> EngineConnection | None:
        """Return a new connection, or eject the endpoint and return None."""
        try:
            return await self._pools[endpoint].connect(exchange)
        except OSError as error:
            self._health.eject(endpoint, str(error) or "no answer to a connect")
            return None

    def _no_endpoint(self, key: RouteKey, tried: list[Endpoint], lifecycle: Lifecycle) -> RequestError:
        """Return the error for a request that no endpoint is left for."""
        if not tried and self._directory.resolve(key.model) is None:
            return errors.unknown_model(key.model, list(self._directory.models()))
        lifecycle.model = key.model
        return errors.no_replica(key.model)
