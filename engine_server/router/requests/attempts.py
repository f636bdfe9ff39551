"""The attempts to have a request answered: each sends it to an endpoint, until a step ends them."""

from math import inf
from time import perf_counter

from engine_server.contract.wire.body_structure import excess_of_structure
from engine_server.contract.wire.deadline import TimeLeft
from engine_server.router import errors
from engine_server.router.callers.callers import Callers
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.exchange import JSON, Exchange
from engine_server.router.http.upstream import Pools
from engine_server.router.rejections import Reason, Sender
from engine_server.router.requests.body_packer import unpack_body
from engine_server.router.requests.deadline import read_deadline
from engine_server.router.requests.hold.hold import Hold
from engine_server.router.requests.journal import resume_message
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.next_step import (
    Attempts,
    Continue,
    Cut,
    Fail,
    PassOn,
    Refuse,
    Retry,
    Step,
    next_step,
)
from engine_server.router.requests.observation import Observation
from engine_server.router.requests.outcome import FINISHED, REFUSED, UNANSWERED, UNFIT, Outcome
from engine_server.router.requests.placement import Place, Placement
from engine_server.router.requests.relay import Relay
from engine_server.router.requests.watch import Watch
from engine_server.router.routing.directory import Route
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.key import read_key
from engine_server.router.routing.selection import Selector
from engine_server.shared.abridged_body import abridge
from engine_server.shared.media_type import is_json

FIRST = Attempts()
# A smaller body takes too little time to be worth counting its values, which the engine does anyway.
UNCOUNTED_BYTES = 4 << 20


class Forwarder:
    """Sends requests to endpoints of the deployments that they name."""

    def __init__(
        self,
        callers: Callers,
        placement: Placement,
        selector: Selector,
        hold: Hold,
        watch: Watch,
        pools: Pools,
        observation: Observation,
        memory: BodyBudget,
        prefix_chars: int,
    ) -> None:
        self._callers = callers
        self._credentials = callers.engine_credentials
        self._placement = placement
        self._selector = selector
        self._hold = hold
        self._open = watch.open
        self._pools = pools
        self._observation = observation
        self._metrics = observation.metrics
        self._memory = memory
        self._prefix_chars = prefix_chars

    async def forward(self, exchange: Exchange) -> None:
        """Answer a request with an engine's answer. Raises RequestError if no engine gives one."""
        request = exchange.request
        with self._observation.begin(request) as lifecycle:
            caller = self._callers.identify(request.fields)
            if (content_type := request.fields.get(b"content-type")) != JSON:
                self._check_type(content_type)
            body = abridge(request.body)
            lifecycle.admit(caller, len(body))
            if len(body) > UNCOUNTED_BYTES:
                self._check_structure(body, request.path)
            scope = self._credentials.cache_scope(caller)
            key = read_key(body, request.fields, self._prefix_chars, scope)
            del body  # a stream's is packed, and memory is counted as if nothing else had it
            exchange.sent = errors.Sent(key.model, key.request_id)
            lifecycle.deadline = read_deadline(request, key.timeout)
            attempts = FIRST
            refused: Relay | None = None
            while True:
                place = await self._placement.acquire(exchange, lifecycle, key, attempts)
                if isinstance(place, Place):
                    route, choice, attempts = place.route, place.choice, place.attempts
                    if choice.is_own is not None:
                        route.ring_picks[choice.is_own] += 1
                    if attempts.tried:
                        self._metrics.retries[attempts.retry_reason] += 1
                    relay = await self._send(route, choice.endpoint, exchange, lifecycle)
                    if relay.outcome is FINISHED:
                        choice.endpoint.failures_in_row = 0
                        return
                    if relay.outcome in (REFUSED, UNFIT):
                        refused = relay
                    attempts = attempts.add(choice.endpoint)
                    step: Step = next_step(relay.result, self._placement.view(place, key.model), attempts)
                    if step.verdict is not None:
                        self._selector.apply(step.verdict, choice.endpoint, route)
                else:
                    step = place
                match step:
                    case Retry():
                        attempts = step.attempts
                    case Continue():
                        attempts = step.attempts
                        self._metrics.resumed[attempts.retry_reason] += 1
                        assert lifecycle.journal is not None
                        lifecycle.journal.resume()
                    case PassOn():
                        assert refused is not None
                        return refused.pass_on()
                    case Refuse():
                        assert refused is not None
                        raise self._placement.explain(refused.refusal, exchange, lifecycle)
                    case Cut():
                        self._metrics.interrupted += 1
                        return exchange.cut()
                    case Fail():
                        self._metrics.interrupted += step.interrupts
                        raise step.error

    def _check_type(self, content_type: bytes | None) -> None:
        """Raise RequestError (415) for a body that is not declared as JSON, which any page can have a browser send."""
        if content_type is None or not is_json(content_type):
            self._metrics.rejections.add(Sender.CLIENT, Reason.NOT_JSON)
            raise errors.not_json(content_type)

    def _check_structure(self, body: bytes | bytearray, path: bytes) -> None:
        """Raise RequestError (400) for a body with more values than an engine takes."""
        excess = excess_of_structure(body, path.decode("latin-1"))
        if excess is not None:
            self._metrics.rejections.add(Sender.CLIENT, Reason.TOO_MANY_VALUES)
            raise errors.bad_body(f"The body has too many values: {excess}")

    async def _send(
        self, route: Route, endpoint: Endpoint, exchange: Exchange, lifecycle: Lifecycle
    ) -> Relay:
        """Send the request, or that which continues its stream, to an endpoint, and forward the answer.

        Return the relay, which has the outcome.
        """
        request, stream = exchange.request, lifecycle.journal
        credentials = self._credentials.lines(request.fields, route.deployment, lifecycle.caller)
        lines = route.request_lines + credentials
        if lifecycle.trace is not None:
            lifecycle.trace.inject(request)
        if exchange.streaming:
            request.decline_encodings()
        if request.packed is not None and not await unpack_body(exchange, request.packed):
            raise errors.interrupted(lifecycle.model)
        resumes = stream if stream is not None and stream.begun else None
        connection = self._pools[endpoint].take()
        kept = connection is not None
        relay: Relay | None = None
        while True:
            if connection is None:
                try:
                    connection = await self._pools[endpoint].connect(exchange)
                except OSError as error:
                    relay = relay or Relay(exchange, lifecycle, outcome=Outcome.UNREACHABLE)
                    relay.connect_error = error
                    return relay
            # First, so that the engine works while the relay is set up. The body must not be referenced after it.
            end = lifecycle.deadline
            sent = lines if end == inf else lines + TimeLeft(end - perf_counter()).line()
            connection.send(resume_message(request, sent, resumes) if resumes else request.message(sent))
            relay = Relay(exchange, lifecycle, self._memory, connection)
            try:
                connection.receive(relay)
                exchange.follow(connection.transport)
                self._open.add(relay)
                await relay
            finally:
                self._open.discard(relay)
                exchange.source = None
                connection.release()
                if endpoint.full_until and relay.outcome is not REFUSED:
                    endpoint.full_until = 0.0  # the request, which it had taken, has ended
                if self._hold.count:
                    self._hold.on_end(endpoint.deployment)
            if relay.outcome is not UNANSWERED or not kept:
                return relay
            # The engine may have closed the kept connection just as it was used: it gets the request once more.
            connection, kept = None, False
