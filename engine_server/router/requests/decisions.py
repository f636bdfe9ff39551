"""The decisions on what follows an attempt at a replica."""

from time import perf_counter

import msgspec

from engine_server.contract.errors import ErrorCode
from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.metrics import Metrics
from engine_server.router.requests.hold.hold import Held, Hold
from engine_server.router.requests.journal import Journal
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.outcome import DEFAULT_RETRY_AFTER_SECONDS, Outcome, Refusal
from engine_server.router.requests.relay import Relay
from engine_server.router.requests.retry_budget import RetryBudget
from engine_server.router.routing.directory import Route
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Cause, Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice
from engine_server.router.routing.selection import Selector

# Attempts before the first byte. A request that crashes engines must not reach all of them.
MAX_ATTEMPTS = 3


class Attempts(msgspec.Struct):
    """The attempts of one request so far, all of which failed."""

    # Attempts that may have failed because of the request.
    unanswered: int = 0
    # Endpoints that could not be connected to and were not ejected.
    unreachable: int = 0
    tried: list[Endpoint] = msgspec.field(default_factory=list)
    # The last refusal; the client gets it if no other engine answers.
    refused: Relay | None = None
    # The reason for which the request is sent elsewhere, for the metrics.
    retry_reason: str = ""
    # The retry counts against the budget, since nothing else limits it.
    budgeted: bool = False
    # The last wait for a replica.
    held: Held | None = None


class Decisions:
    """Decides after each attempt whether the request is answered, sent elsewhere, or held, and where it is sent."""

    def __init__(self, health: Health, hold: Hold, metrics: Metrics) -> None:
        self._health = health
        self._hold = hold
        self._metrics = metrics
        self._selector = Selector(health)
        self._budget = RetryBudget()

    def count(self, now: float) -> None:
        """Count a request that arrived at the time `now` (perf_counter): some retries are a share of all requests."""
        self._budget.count(now)

    def pick(self, route: Route, key: RouteKey, attempts: Attempts, stream: Journal | None) -> Choice | None:
        """Choose the endpoint for the next attempt, and count a retry. Return None if there is to be no attempt."""
        fingerprint = b"" if stream is None else stream.fingerprint
        if not attempts.tried:
            if self._hold.count and attempts.held is None and self._hold.has_waiting(route.target):
                return None
            return self._selector.pick(route, key, (), fingerprint)
        if len(attempts.tried) == MAX_ATTEMPTS:
            return None
        choice = self._selector.pick(route, key, attempts.tried, fingerprint)
        if choice is None or (attempts.budgeted and not self._budget.spend(perf_counter())):
            return None
        self._metrics.retries[attempts.retry_reason] += 1
        return choice

    def is_settled(self, relay: Relay, attempts: Attempts, route: Route, endpoint: Endpoint) -> bool:
        """Decide what follows an attempt that did not finish. Return False if the request is to be sent elsewhere."""
        stream = relay.lifecycle.journal
        attempts.retry_reason = str(relay.outcome)
        attempts.budgeted = False
        match relay.outcome:
            case Outcome.INTERRUPTED:
                return not self._may_continue(relay, attempts, route, endpoint)
            case Outcome.UNREACHABLE:
                attempts.unreachable += self._health.is_live(endpoint)
            case Outcome.UNANSWERED:
                attempts.unanswered += 1
                self._health.record_failure(endpoint, "it closed a connection without an answer")
            case Outcome.SILENT:
                attempts.unanswered += 1
            case Outcome.REFUSED if stream is not None and stream.begun:
                attempts.refused = relay
                self._take_refusal(relay.refusal, attempts, route, endpoint)
                attempts.budgeted = False
                known = endpoint.fingerprints.get(route.target.adapter)
                if relay.refusal.code == ErrorCode.MODEL_MISMATCH and known != stream.fingerprint:
                    attempts.tried.remove(endpoint)  # its fingerprint is known now, so it is not picked again
            case Outcome.REFUSED:
                attempts.refused = relay
                if not self._take_refusal(relay.refusal, attempts, route, endpoint):
                    relay.pass_on()
                    return True
        if attempts.unanswered < MAX_ATTEMPTS and attempts.unreachable < MAX_ATTEMPTS:
            return False
        if stream is not None and stream.begun:
            raise self._interrupted(relay.lifecycle)
        if attempts.unanswered < MAX_ATTEMPTS:
            raise errors.no_replica(relay.lifecycle.model)
        raise errors.no_answer(relay.lifecycle.model, attempts.unanswered)

    def _may_continue(self, relay: Relay, attempts: Attempts, route: Route, endpoint: Endpoint) -> bool:
        """Prepare to send the request elsewhere after its answer broke off. Return False if the answer ends there.

        Raises RequestError for a stream that no other engine can continue.
        """
        stream = relay.lifecycle.journal
        if stream is None:
            self._metrics.interrupted += 1
            relay.exchange.cut()
            return False
        if relay.stream_error is not None:
            refusal = Refusal(503, relay.stream_error, DEFAULT_RETRY_AFTER_SECONDS)
            self._take_refusal(refusal, attempts, route, endpoint)
            attempts.budgeted = False
        if not stream.resume():
            raise self._interrupted(relay.lifecycle)
        self._metrics.resumed[attempts.retry_reason] += 1
        attempts.tried[:] = [endpoint]
        attempts.unanswered = 0
        return True

    def _interrupted(self, lifecycle: Lifecycle) -> RequestError:
        """Return the error for a stream that no other engine can continue."""
        self._metrics.interrupted += 1
        return errors.interrupted(lifecycle.model)

    def _take_refusal(self, refusal: Refusal, attempts: Attempts, route: Route, endpoint: Endpoint) -> bool:
        """Act on what a refusal says of its engine. Return False if each engine would refuse the request."""
        if refusal.code is not None:
            attempts.retry_reason = refusal.code
        match refusal.code:
            case ErrorCode.QUEUE_FULL:
                self._selector.mark_full(endpoint, refusal.retry_after)
                attempts.budgeted = True
            case ErrorCode.DRAINING | ErrorCode.LOADING | ErrorCode.ENGINE_DEAD:
                # No budget: the engine takes no further requests, and those that it had must not be lost.
                self._health.eject(endpoint, f"it answered {refusal.code}", Cause.REFUSING)
            case ErrorCode.MODEL_NOT_FOUND if route.adapter is not None:
                # The engine lost it just now, or has not loaded it again since a restart.
                self._selector.mark_lacking(route, endpoint)
                attempts.budgeted = True
            case ErrorCode.MODEL_NOT_FOUND if route.deployment.known_to_engines:
                # An engine of an earlier release knows the names in its arguments alone, and reports no fingerprint.
                if "" in endpoint.fingerprints:
                    self._health.retire(endpoint, "its address belongs to another deployment")
            case ErrorCode.REQUEST_FAILED:
                return False
            case None if refusal.status == 503:
                self._health.suspect(endpoint, "it answered 503", Cause.REFUSING)
                attempts.budgeted = True
            case _ if refusal.status >= 500:
                self._health.record_failure(endpoint, f"it answered {refusal.status}")
                attempts.budgeted = True
            case _:
                return False
        return True

    def is_settled_without_endpoint(self, route: Route, attempts: Attempts, lifecycle: Lifecycle) -> bool:
        """Decide what follows if no endpoint is left. Return False if the request is to wait for one."""
        refused, stream = attempts.refused, lifecycle.journal
        seconds = self._selector.seconds_until_room(route)
        holds = self._hold.settings.seconds > 0
        may_wait = holds and (seconds is not None or not self._selector.has_live(route))
        if stream is not None and stream.begun:
            if may_wait or (holds and attempts.tried and refused is None):
                return False
            raise self._interrupted(lifecycle)
        if seconds is not None and attempts.held is None and not self._hold.settings.when_full:
            raise errors.saturated(lifecycle.model, seconds)
        if attempts.tried and refused is None and not holds:
            raise errors.no_replica(lifecycle.model)
        was_full = attempts.held is not None and attempts.retry_reason == ErrorCode.QUEUE_FULL
        if refused is None or may_wait or was_full:
            return False
        refused.pass_on()
        return True
