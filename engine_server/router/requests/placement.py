"""The placement of requests: the route that the model's name means, and an endpoint of it or a wait for one."""

import logging
from time import perf_counter

import msgspec

from engine_server.contract.base.quoting import quote
from engine_server.router import errors
from engine_server.router.callers.account import listed_models, usable_route
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange
from engine_server.router.recent_subjects import RecentSubjects
from engine_server.router.requests.hold.hold import Hold
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.requests.next_step import (
    MAX_ATTEMPTS,
    Attempts,
    Fail,
    Refuse,
    RouteView,
    View,
    Wait,
    explain,
    without_endpoint,
)
from engine_server.router.requests.outcome import Refusal
from engine_server.router.routing.directory import Directory, Route, Target
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice
from engine_server.router.routing.selection import Selector

log = logging.getLogger(__name__)


class Place(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of a request's next attempt."""

    route: Route
    choice: Choice
    # Those before, which begin again after a wait.
    attempts: Attempts


class Placement:
    """Finds the place of each attempt. A request leaves it for the next one, and at the end of its lifecycle."""

    def __init__(self, directory: Directory, health: Health, selector: Selector, hold: Hold) -> None:
        self._directory = directory
        self._health = health
        self._hold = hold
        self._selector = selector
        self._logged = RecentSubjects()

    async def acquire(
        self, exchange: Exchange, lifecycle: Lifecycle, key: RouteKey, attempts: Attempts
    ) -> Place | Refuse | Fail:
        """Count the request at an endpoint, once there is one for it, or return the step that ends it.

        The name is resolved again after each wait, which its deployment may not outlive. Raises RequestError if it
        means no model, or one that the sender may not use.
        """
        caller, stream, hold = lifecycle.caller, lifecycle.journal, self._hold
        begun = stream is not None and stream.begun
        while True:
            route = usable_route(key.model, caller, self._directory)
            if lifecycle.deployment != route.target.deployment:
                route.budget.count(lifecycle.started)
            lifecycle.assign(key.model, route.target)
            if lifecycle.is_late:
                return Fail(error=errors.timed_out(key.model), interrupts=begun)
            fingerprint, settings = (b"", b"") if stream is None else (stream.fingerprint, stream.settings)
            choice: Choice | None = None
            if attempts.tried:
                choice = self._choose_another(route, key, attempts, fingerprint, settings)
            elif attempts.held is not None or not (hold.count and hold.has_waiting(route.target)):
                choice = self._selector.pick(route, key, attempts.unfit, fingerprint, settings)
            if choice is not None:
                lifecycle.visit(choice.endpoint, key.size)
                return Place(route, choice, attempts)

            step = without_endpoint(self._view_route(route, key.model), attempts, begun=begun)
            if not isinstance(step, Wait):
                return step
            lifecycle.leave()
            try:
                held = await hold.wait(
                    route,
                    key.model,
                    exchange,
                    attempts.held,
                    stream=exchange.streaming or key.stream,
                    begun=begun,
                    caller=exchange.client.owner,
                    priority=caller.priority,
                    deadline=lifecycle.deadline,
                )
            except RequestError as error:
                self._log_detail(route.target, exchange, error)
                return Fail(error=error, interrupts=begun)
            attempts = Attempts(attempts.unanswered, attempts.unreachable, unfit=attempts.unfit, held=held)

    def explain(self, refusal: Refusal, exchange: Exchange, lifecycle: Lifecycle) -> RequestError:
        """Return the answer in place of the last refusal, since there is no endpoint for another attempt."""
        assert lifecycle.deployment is not None
        known = listed_models(lifecycle.caller, self._directory)
        error = explain(refusal, lifecycle.model, known)
        self._log_detail(Target(lifecycle.deployment, lifecycle.adapter), exchange, error)
        return error

    def _log_detail(self, target: Target, exchange: Exchange, error: RequestError) -> None:
        """Log what the caller is not told, at most once a minute for each deployment and adapter."""
        if error.detail and self._logged.add(str(target), perf_counter()):
            detail = quote(error.detail)
            log.warning("%s: request %s got %s: %s", target, exchange.request.id.decode(), error.code, detail)

    def view(self, place: Place, model: str) -> View:
        """Return the state of a place after the attempt there failed."""
        route, endpoint = place.route, place.choice.endpoint
        return View(
            model=model,
            live=self._health.is_live(endpoint),
            expendable=self._health.is_expendable(endpoint),
            fingerprint=endpoint.fingerprints.get(route.target.adapter),
            has_fingerprint="" in endpoint.fingerprints,
            has_settings=bool(endpoint.stream_settings),
            for_adapter=route.adapter is not None,
            known_to_engines=route.deployment.known_to_engines,
        )

    def _choose_another(
        self, route: Route, key: RouteKey, attempts: Attempts, fingerprint: bytes, settings: bytes
    ) -> Choice | None:
        """Choose the endpoint of a retry. Return None if there is none, or if there is to be no retry."""
        if len(attempts.tried) == MAX_ATTEMPTS:
            return None
        choice = self._selector.pick(route, key, attempts.tried + attempts.unfit, fingerprint, settings)
        if choice is not None and attempts.budgeted and not route.budget.spend(perf_counter()):
            return None
        return choice

    def _view_route(self, route: Route, model: str) -> RouteView:
        settings = self._hold.settings
        return RouteView(
            model=model,
            has_live=self._selector.has_live(route),
            seconds_until_room=self._selector.seconds_until_room(route),
            holds=settings.seconds > 0,
            holds_when_full=settings.when_full,
        )
