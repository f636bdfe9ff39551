"""The requests that wait for a replica, by deployment."""

import asyncio
from dataclasses import dataclass
from math import inf
from time import perf_counter

from engine_server.contract.api import Key
from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange, Wait
from engine_server.router.requests.hold.cold_starts import ColdStarts
from engine_server.router.requests.hold.line import Line, Place
from engine_server.router.requests.hold.room import Window
from engine_server.router.requests.hold.waking import Wakes
from engine_server.router.routing.directory import Directory, Route
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health

# Between two looks at all that wait.
INTERVAL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """The bounds of waiting."""

    # Requests of one deployment that wait at most.
    requests: int = 1024
    # Longest wait, in seconds; 0 holds no request.
    seconds: float = 900.0
    # Requests that find all replicas full wait too.
    when_full: bool = False
    # Seconds after which the client of a stream gets a comment, and between two comments.
    comment_seconds: float = 10.0


class Held(Wait):
    """A request that waits, or that has waited and can return to its place."""

    # The deployment that it waits for, and the model as the client calls it.
    key: Key
    model: str
    place: Place
    # Times (perf_counter) of its refusal and of its next comment; a request that gets no comments has inf.
    until: float
    comment_at: float
    failure: RequestError | None = None


class Hold:
    """Holds requests that find no replica until one has room for them, and wakes deployments at zero replicas.

    Everything that waits is looked at a few times a second, so that no request needs a timer. The end of a request
    releases the next one without that delay.
    """

    def __init__(self, settings: HoldSettings, directory: Directory, health: Health) -> None:
        self.settings = settings
        # Requests that wait now.
        self.count = 0
        self._directory = directory
        self._health = health
        self._lines: dict[Key, Line[Held]] = {}
        self._windows: dict[Endpoint, Window] = {}
        self._cold_starts = ColdStarts()
        self._wakes = Wakes()
        self._needed = asyncio.Event()

    def has_waiting(self, key: Key) -> bool:
        """Return True if requests wait for this deployment: those that arrive later wait behind them."""
        return self.count > 0 and len(self._lines.get(key, ())) > 0

    def counts(self) -> dict[Key, int]:
        """Return the number of requests that wait for each deployment."""
        return {key: len(line) for key, line in self._lines.items() if self._directory.route(key)}

    async def wait(
        self,
        route: Route,
        model: str,
        exchange: Exchange,
        held: Held | None,
        *,
        stream: bool,
        caller: str = "",
        priority: int = 0,
    ) -> Held:
        """Hold a request until its turn. `held` is the result of its last wait, whose place it takes again.

        Raises RequestError if no replica will come, or past a bound.
        """
        now, key = perf_counter(), route.deployment.key
        live = self._live(route)
        if not live and route.deployment.cannot_start:
            raise errors.no_replica(model, route.deployment.reason)
        line = self._lines[key] if key in self._lines else self._new_line(key)
        if held is None or held.key != key:
            if len(line) >= self.settings.requests or self.settings.seconds <= 0:
                raise self._refusal(route, model, now)
            place = line.new_place(caller, priority)
            comment_at = now + self.settings.comment_seconds if stream else inf
            held = Held(exchange, key, model, place, now + self.settings.seconds, comment_at)
        for endpoint in live:
            if endpoint.full_until > now:
                self._window(endpoint, now).update(endpoint, now)
        line.add(held)
        self.count += 1
        self._needed.set()
        try:
            await held
        finally:
            self._remove(held)  # if the client has left
        if held.failure is not None:
            raise held.failure
        return held

    def on_end(self, key: Key) -> None:
        """Take note that a request of this deployment has ended, which may make room for the next."""
        if self.has_waiting(key):
            asyncio.get_running_loop().call_soon(self._release, key)

    async def run(self) -> None:
        """Look after the requests that wait, until cancelled."""
        try:
            while True:
                await self._needed.wait()
                self._check()
                await asyncio.sleep(INTERVAL_SECONDS)
                if not self.count and not self._cold_starts.begun:
                    self._needed.clear()
        finally:
            self._wakes.stop_all()

    def close(self) -> None:
        """Refuse all requests that wait: the router ends."""
        now = perf_counter()
        for key, line in self._lines.items():
            route = self._directory.route(key)
            for held in [*line]:
                self._end(held, self._refusal(route, held.model, now) if route else None)

    # At each interval

    def _check(self) -> None:
        now = perf_counter()
        self._cold_starts.expire(now)
        self._windows = {one: window for one, window in self._windows.items() if self._health.is_live(one)}
        waiting = [key for key, line in self._lines.items() if line]
        for key in {*waiting, *self._cold_starts.begun}:
            line, route = self._lines[key], self._directory.route(key)
            if route is None:  # deleted: each request resolves the model's name again
                self._cold_starts.begun.pop(key, None)
                for held in [*line]:
                    self._end(held)
                continue
            live = self._live(route)
            if live:
                self._wakes.stop(key)
                self._cold_starts.end(key, now)
                for endpoint in live:
                    self._window(endpoint, now).update(endpoint, now)
                self._release(key)
            elif line:
                self._start(route, line, now)
            else:
                self._wakes.stop(key)
            self._check_times(route, line, now)

    def _start(self, route: Route, line: Line[Held], now: float) -> None:
        """Start the first replica of a deployment that requests wait for, or refuse them if it cannot start."""
        deployment = route.deployment
        if deployment.cannot_start:
            for held in [*line]:
                self._end(held, errors.no_replica(held.model, deployment.reason))
            return
        self._cold_starts.begin(deployment.key, now)
        if deployment.waker is None:
            self._wakes.stop(deployment.key)
        else:
            self._wakes.start(deployment.key, deployment.waker)

    def _check_times(self, route: Route, line: Line[Held], now: float) -> None:
        """Refuse requests that have waited for too long, and send comments to those whose clients expect events."""
        for held in [*line]:
            if held.until <= now:
                self._end(held, self._refusal(route, held.model, now))
            elif held.comment_at <= now:
                held.comment_at = now + self.settings.comment_seconds
                held.exchange.send_comment()

    # Parts

    def _release(self, key: Key) -> None:
        """Release as many requests as the endpoints have room for, in their order."""
        line, route, now = self._lines[key], self._directory.route(key), perf_counter()
        if route is None:
            return
        room = sum(
            window.room(endpoint, now)
            for endpoint in self._live(route)
            if (window := self._windows.get(endpoint))
        )
        while line and room > 0:
            self.count -= 1
            line.release().wake()
            room -= 1

    def _end(self, held: Held, failure: RequestError | None = None) -> None:
        """End a wait out of turn: with `failure`, or without one if the model's name is to be resolved again."""
        self._remove(held)
        held.failure = failure
        held.wake()

    def _remove(self, held: Held) -> None:
        if self._lines[held.key].remove(held):
            self.count -= 1

    def _live(self, route: Route) -> list[Endpoint]:
        return [endpoint for endpoint in route.endpoints if endpoint not in self._health.down]

    def _window(self, endpoint: Endpoint, now: float) -> Window:
        window = self._windows.get(endpoint)
        if window is None:
            window = self._windows[endpoint] = Window(now)
        return window

    def _refusal(self, route: Route, model: str, now: float) -> RequestError:
        """Return the error for a request that cannot wait, or that has waited for too long."""
        live = self._live(route)
        if live and (self.has_waiting(route.deployment.key) or all(one.full_until > now for one in live)):
            return errors.saturated(model, min(one.full_until for one in live) - now)
        seconds = self._cold_starts.remaining(route.deployment.key, now)
        return errors.no_replica(model, route.deployment.reason, seconds)

    def _new_line(self, key: Key) -> Line[Held]:
        """Add a line, and forget those of deployments that no longer exist."""
        existing = {route.deployment.key for route in self._directory.routes}
        self._lines = {one: line for one, line in self._lines.items() if line or one in existing}
        self._cold_starts.forget(existing)
        line = self._lines[key] = Line()
        return line
