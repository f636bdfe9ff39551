"""The choice of an endpoint for a request: liveness, room and policy together."""

from collections.abc import Collection
from time import perf_counter

from engine_server.router.routing.directory import Route
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health
from engine_server.router.routing.key import RouteKey
from engine_server.router.routing.policies.policy import Choice
from engine_server.router.routing.verdict import Kind, Verdict

# An engine that lacked an adapter is passed over for so long, unless its deployment changes in the meantime.
LACKING_SECONDS = 5.0


class Selector:
    """Chooses among the endpoints of a deployment that are live and have room."""

    def __init__(self, health: Health) -> None:
        self._health = health
        # Endpoints that said that they are full, and some that no longer are.
        self._full: set[Endpoint] = set()

    def pick(
        self,
        route: Route,
        key: RouteKey,
        tried: Collection[Endpoint],
        fingerprint: bytes = b"",
        settings: bytes = b"",
    ) -> Choice | None:
        """Choose an endpoint for the request that is not among `tried`. Return None if there is none.

        fingerprint, settings: that of the model or adapter, and of its streams, that it must have, as far as they are
        known; empty if it may have any.
        """
        candidates, down = route.endpoints, self._health.down
        if route.lacking:
            candidates = having_adapter(route, tried)
        if fingerprint:
            adapter = route.target.adapter
            candidates = tuple(
                e for e in candidates if e.fingerprints.get(adapter, fingerprint) == fingerprint
            )
        if settings:
            candidates = tuple(e for e in candidates if e.stream_settings in (b"", settings))
        if down or tried or self._full:
            full = self._current_full() if self._full else ()
            candidates = tuple(e for e in candidates if e not in down and e not in tried and e not in full)
        if len(candidates) < 2:
            return Choice(candidates[0]) if candidates else None
        return route.policy.pick(key, candidates, perf_counter())

    def apply(self, verdict: Verdict, endpoint: Endpoint, route: Route) -> None:
        """Act on the verdict on an endpoint of the route."""
        match verdict.kind:
            case Kind.EJECT:
                self._health.eject(endpoint, verdict.reason, verdict.cause)
            case Kind.SUSPECT:
                self._health.suspect(endpoint, verdict.reason, verdict.cause)
            case Kind.FAILED:
                self._health.record_failure(endpoint, verdict.reason)
            case Kind.RETIRE:
                self._health.retire(endpoint, verdict.reason)
            case Kind.FULL:
                endpoint.full_until = perf_counter() + verdict.seconds
                endpoint.refused = True
                self._full.add(endpoint)
            case Kind.LACKING:
                route.lacking[endpoint] = perf_counter() + LACKING_SECONDS

    def has_live(self, route: Route) -> bool:
        """Return True if an endpoint is live, even if it is full."""
        return not self._health.down.keys() >= {*route.endpoints}

    def seconds_until_room(self, route: Route) -> float | None:
        """Return the time after which the first of the live endpoints is to be tried again, if all are full."""
        live = [endpoint for endpoint in route.endpoints if endpoint not in self._health.down]
        full = self._current_full()
        if not live or not full.issuperset(live):
            return None
        return min(endpoint.full_until for endpoint in live) - perf_counter()

    def _current_full(self) -> set[Endpoint]:
        now = perf_counter()
        self._full = {endpoint for endpoint in self._full if endpoint.full_until > now}
        return self._full


def having_adapter(route: Route, tried: Collection[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints that did not lately lack the route's adapter.

    All of them if none is left and the request has tried none yet: a client may have caused their answers.
    """
    now = perf_counter()
    having = tuple(e for e in route.endpoints if route.lacking.get(e, 0.0) <= now)
    return having if having or tried else route.endpoints
