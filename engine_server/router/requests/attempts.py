"""The attempts to have a request answered: each sends it to an endpoint, until a decision ends them."""

from engine_server.router import errors
from engine_server.router.callers.account import visible_models
from engine_server.router.callers.callers import Callers
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.upstream import EngineConnection, Pools
from engine_server.router.http.wire import Message
from engine_server.router.requests.decisions import Attempts, Decisions
from engine_server.router.requests.hold.hold import Hold
from engine_server.router.requests.journal import resume_message
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.observation import Observation
from engine_server.router.requests.outcome import Outcome
from engine_server.router.requests.relay import Relay
from engine_server.router.requests.watch import Watch
from engine_server.router.routing.directory import Directory, Route
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey, read_key


class Forwarder:
    """Sends requests to endpoints of the deployments that they name."""

    def __init__(
        self,
        callers: Callers,
        directory: Directory,
        health: Health,
        hold: Hold,
        watch: Watch,
        pools: Pools,
        observation: Observation,
        prefix_chars: int,
    ) -> None:
        self._callers = callers
        self._credentials = callers.engine_credentials
        self._directory = directory
        self._health = health
        self._hold = hold
        self._open = watch.open
        self._pools = pools
        self._observation = observation
        self._decisions = Decisions(health, hold, observation.metrics)
        self._prefix_chars = prefix_chars

    async def forward(self, exchange: Exchange) -> None:
        """Answer a request with an engine's answer. Raises RequestError if no engine gives one."""
        request = exchange.request
        with self._observation.begin(request) as lifecycle:
            self._decisions.count(lifecycle.started)
            caller = self._callers.identify(request.fields)
            key = read_key(request.body, request.fields, self._prefix_chars)
            lifecycle.admit(caller)
            attempts = Attempts()
            while True:
                route = self._directory.resolve(key.model)
                if route is None:
                    raise errors.unknown_model(key.model, list(visible_models(caller, self._directory)))
                if not caller.may_use(route, self._directory):
                    raise errors.model_not_allowed(key.model, list(visible_models(caller, self._directory)))
                lifecycle.assign(key.model, route.target)

                stream = lifecycle.journal
                choice = self._decisions.pick(route, key, attempts, stream)
                if choice is None:
                    if self._decisions.is_settled_without_endpoint(route, attempts, lifecycle):
                        return None
                    attempts = await self._wait(route, key, attempts, exchange, lifecycle)
                    continue
                endpoint = choice.endpoint
                attempts.tried.append(endpoint)
                if choice.is_own is not None:
                    route.ring_picks[choice.is_own] += 1
                lifecycle.visit(endpoint, key.size)

                lines = route.request_lines + self._credentials.lines(request.fields, route.deployment)
                traced = request if lifecycle.trace is None else lifecycle.trace.inject(request)
                if stream is not None and stream.begun:
                    message = resume_message(traced, lines, stream)
                else:
                    message = traced.message(lines)
                relay = await self._attempt(endpoint, message, exchange, lifecycle)
                if relay.outcome is Outcome.FINISHED:
                    endpoint.failures_in_row = 0
                    return None
                if self._decisions.is_settled(relay, attempts, route, endpoint):
                    return None

    async def _wait(
        self, route: Route, key: RouteKey, attempts: Attempts, exchange: Exchange, lifecycle: Lifecycle
    ) -> Attempts:
        """Hold a request until an endpoint may take it, and return its attempts, which begin again."""
        lifecycle.leave()
        caller = lifecycle.caller
        try:
            held = await self._hold.wait(
                route,
                key.model,
                exchange,
                attempts.held,
                stream=exchange.streaming or key.stream,
                caller=caller.name,
                priority=caller.priority,
            )
        except RequestError:
            if lifecycle.journal is not None and lifecycle.journal.begun:
                self._observation.metrics.interrupted += 1
            raise
        return Attempts(attempts.unanswered, attempts.unreachable, held=held)

    async def _attempt(
        self, endpoint: Endpoint, message: Message, exchange: Exchange, lifecycle: Lifecycle
    ) -> Relay:
        """Send `message` to an endpoint and forward its answer. Return the relay, which has the outcome."""
        connection = self._pools[endpoint].take()
        kept = connection is not None
        relay: Relay | None = None
        while True:
            if connection is None:
                connection = await self._connect(endpoint, exchange)
                if connection is None:
                    return relay or Relay(exchange, lifecycle, outcome=Outcome.UNREACHABLE)
            connection.send(message)  # first, so that the engine works while the relay is set up
            relay = Relay(exchange, lifecycle)
            try:
                connection.receive(relay)
                exchange.follow(connection.transport)
                self._open.add(relay)
                await relay
            finally:
                self._open.discard(relay)
                exchange.source = None
                connection.release()
                if endpoint.full_until and relay.outcome is not Outcome.REFUSED:
                    endpoint.full_until = 0.0  # the request, which it had taken, has ended
                if self._hold.count:
                    self._hold.on_end(endpoint.deployment)
            if relay.outcome is not Outcome.UNANSWERED or not kept:
                return relay
            # The engine may have closed the kept connection just as it was used: it gets the request once more.
            connection, kept = None, False

    async def _connect(self, endpoint: Endpoint, exchange: Exchange) -> EngineConnection | None:
        """Return a new connection, or None if none can be opened, which ejects the endpoint."""
        try:
            return await self._pools[endpoint].connect(exchange)
        except ConnectionRefusedError as error:
            self._health.eject(endpoint, str(error))
        except OSError as error:
            # The cause may be the router's own: its network, or a lack of file descriptors.
            self._health.suspect(endpoint, str(error) or "no answer to a connect")
        return None
