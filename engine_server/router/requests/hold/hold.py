"""The requests that wait for a replica, by deployment and adapter."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter, time

from engine_server.contract.cluster.api import Key
from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange, Wait
from engine_server.router.obstacle import Obstacle
from engine_server.router.requests.hold.cold_starts import ColdStarts
from engine_server.router.requests.hold.line import Line, Place
from engine_server.router.requests.hold.room import Window
from engine_server.router.requests.hold.waking import Wakes
from engine_server.router.routing.directory import Directory, Route, Target
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Health

# Between two looks at all that wait.
INTERVAL_SECONDS = 0.1
ADAPTER_LOADING = Obstacle("none has loaded the adapter yet")


@dataclass(frozen=True, slots=True)
class HoldSettings:
    """The bounds of waiting."""

    # Requests that wait at most for one deployment, and for each of its adapters.
    requests: int = 1024
    # Longest wait, in seconds; 0 holds no request.
    seconds: float = 900.0
    # Requests that find all replicas full wait too.
    when_full: bool = False
    # Seconds after which the client of a stream gets a comment, and between two comments.
    comment_seconds: float = 10.0


class Held(Wait):
    """A request that waits, or that has waited and can return to its place."""

    # The deployment or adapter that it waits for, and the model as the client calls it.
    target: Target
    model: str
    place: Place
    # Times (perf_counter) of its refusal and of its next comment; a request that gets no comments has inf.
    until: float
    comment_at: float
    # The client has a part of the answer.
    begun: bool = False
    # Time (perf_counter) by which the client wants the whole answer.
    deadline: float = inf
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
        # By deployment and adapter. The lines of a deployment are in the order of their next turns.
        self._lines: defaultdict[Key, dict[str, Line[Held]]] = defaultdict(dict)
        self._windows: dict[Endpoint, Window] = {}
        self._cold_starts = ColdStarts()
        self._wakes = Wakes()
        self._needed = asyncio.Event()

    def has_waiting(self, target: Target) -> bool:
        """Return True if requests wait for this deployment or adapter: those that arrive later wait behind them."""
        if not self.count or target.deployment not in self._lines:
            return False
        return len(self._lines[target.deployment].get(target.adapter, ())) > 0

    def counts(self) -> dict[Key, int]:
        """Return the number of requests that wait for each deployment, those for its adapters included."""
        return {
            key: sum(map(len, lines.values()))
            for key, lines in self._lines.items()
            if self._directory.route(Target(key))
        }

    async def wait(
        self,
        route: Route,
        model: str,
        exchange: Exchange,
        held: Held | None,
        *,
        stream: bool,
        begun: bool = False,
        caller: str = "",
        priority: int = 0,
        deadline: float = inf,
    ) -> Held:
        """Hold a request until its turn. `held` is the result of its last wait, whose place it takes again.

        begun: the client has a part of the answer. caller: the owner of the place; each has a share of them. deadline:
        the time (perf_counter) by which the client wants the whole answer.

        Raises RequestError if no replica will come, or past a bound or the deadline.
        """
        now, target = perf_counter(), route.target
        live = self._live(route.endpoints)
        if not live and (obstacle := self._obstacle(route, model)):
            raise obstacle
        lines = self._lines.get(target.deployment, {})
        line = lines[target.adapter] if target.adapter in lines else self._new_line(target)
        if held is None or held.target != target:
            if self.settings.seconds <= 0 or not self._has_place(line, route, caller, priority, now):
                raise self._refusal(route, model, now)
            place = line.new_place(caller, priority)
            comment_at = now + self.settings.comment_seconds if stream else inf
            until = now + self.settings.seconds
            held = Held(exchange, target, model, place, until, comment_at, begun, deadline)
        for endpoint in live:
            if endpoint.refused:
                self._window(endpoint, now).close(endpoint)
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
        if key in self._lines and any(self._lines[key].values()):
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
        for held in [held for lines in self._lines.values() for line in lines.values() for held in line]:
            route = self._directory.route(held.target)
            self._end(held, self._refusal(route, held.model, now) if route else None)

    # At each interval

    def _check(self) -> None:
        now = perf_counter()
        self._cold_starts.expire(now)
        self._windows = {one: window for one, window in self._windows.items() if self._health.is_live(one)}
        waiting = {key for key, lines in self._lines.items() if any(lines.values())}
        for key in waiting | {target.deployment for target in self._cold_starts.begun}:
            route = self._directory.route(Target(key))
            if route is not None:
                self._prepare(route, now, needed=key in waiting)
            lines = [(Target(key, adapter), line) for adapter, line in self._lines[key].items()]
            for target, line in lines:
                self._check_start(target, line, now)
            self._release(key)
            for target, line in lines:
                self._check_times(target, line, now)

    def _prepare(self, route: Route, now: float, *, needed: bool) -> None:
        """Adjust the windows of a deployment's endpoints, or wake it if it has none and is needed."""
        live, waker = self._live(route.replicas), route.deployment.waker
        for endpoint in live:
            self._window(endpoint, now).update(endpoint, now)
        is_pausing = route.deployment.obstacle.retry_at > time()
        if live or waker is None or not needed or is_pausing:
            self._wakes.stop(route.deployment.key)
        else:
            self._wakes.start(route.deployment.key, waker)

    def _check_start(self, target: Target, line: Line[Held], now: float) -> None:
        """Follow the start of a deployment or adapter that requests wait for, or refuse them if it cannot start."""
        route = self._directory.route(target)
        if route is None:  # deleted: each request resolves the model's name again
            self._cold_starts.begun.pop(target, None)
            for held in [*line]:
                self._end(held)
        elif self._live(route.endpoints):
            self._cold_starts.end(target, now)
        elif line:
            for held in [*line]:
                if obstacle := self._obstacle(route, held.model):
                    self._end(held, obstacle)
            if line:
                self._cold_starts.begin(target, now)

    def _check_times(self, target: Target, line: Line[Held], now: float) -> None:
        """Refuse requests that have waited for too long, and send comments to those whose clients expect events."""
        route = self._directory.route(target)
        for held in [*line]:
            if held.deadline <= now:
                self._end(held, errors.timed_out(held.model))
            elif held.until <= now:
                self._end(held, self._refusal(route, held.model, now) if route else None)
            elif held.comment_at <= now:
                held.comment_at = now + self.settings.comment_seconds
                held.exchange.send_comment()

    # Parts

    def _release(self, key: Key) -> None:
        """Release as many requests for a deployment as its endpoints have room for.

        Each line keeps its order; those of the model and of the adapters take turns.
        """
        lines, base, now = self._lines[key], self._directory.route(Target(key)), perf_counter()
        if base is None:
            return
        room = {
            endpoint: window.room(endpoint, now)
            for endpoint in self._live(base.replicas)
            if (window := self._windows.get(endpoint))
        }
        turns = deque(adapter for adapter, line in lines.items() if line)
        while turns:
            adapter = turns.popleft()
            line, route = lines[adapter], self._directory.route(Target(key, adapter))
            endpoints = route.endpoints if line and route is not None else ()
            roomy = next((endpoint for endpoint in endpoints if room.get(endpoint)), None)
            if roomy is None:
                continue
            room[roomy] -= 1
            lines[adapter] = lines.pop(adapter)  # its next turn comes last
            turns.append(adapter)
            self.count -= 1
            line.release().wake()

    def _has_place(self, line: Line[Held], route: Route, caller: str, priority: int, now: float) -> bool:
        """Return True if a new request finds a place, for which a caller with more than its share gives up one."""
        if not line.full:
            return True
        surplus = line.surplus(caller, priority)
        if surplus is not None:
            self._end(surplus, self._refusal(route, surplus.model, now))
        return surplus is not None

    def _end(self, held: Held, failure: RequestError | None = None) -> None:
        """End a wait out of turn: with `failure`, or without one if the model's name is to be resolved again."""
        self._remove(held)
        held.failure = failure
        held.wake()

    def _remove(self, held: Held) -> None:
        if self._lines[held.target.deployment][held.target.adapter].remove(held):
            self.count -= 1

    def _live(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint not in self._health.down]

    def _window(self, endpoint: Endpoint, now: float) -> Window:
        window = self._windows.get(endpoint)
        if window is None:
            window = self._windows[endpoint] = Window(now)
        return window

    def _obstacle(self, route: Route, model: str) -> RequestError | None:
        """Return the error for a route without a live endpoint that will not have one until somebody acts."""
        deployment, adapter = route.deployment, route.adapter
        if adapter is not None and adapter.error and route.replicas and not route.endpoints:
            return errors.adapter_failed(model, adapter.error)
        if deployment.obstacle.permanent and not self._live(route.replicas):
            return errors.no_replica(model, deployment.obstacle)
        pause = deployment.obstacle.retry_at - time()
        if pause > 0 and not self._live(route.replicas):
            return errors.start_failed(model, deployment.obstacle, pause)
        return None

    def _refusal(self, route: Route, model: str, now: float) -> RequestError:
        """Return the error for a request that cannot wait, or that has waited for too long."""
        live = self._live(route.endpoints)
        if live and (self.has_waiting(route.target) or all(one.full_until > now for one in live)):
            return errors.saturated(model, min(one.full_until for one in live) - now)
        seconds = self._cold_starts.remaining(route.target, now)
        is_loading = route.adapter is not None and self._live(route.replicas)
        return errors.no_replica(model, ADAPTER_LOADING if is_loading else route.deployment.obstacle, seconds)

    def _new_line(self, target: Target) -> Line[Held]:
        """Add a line, and forget those of deployments and adapters that no longer exist."""
        existing = self._directory.targets()
        for key, lines in [*self._lines.items()]:
            for adapter in [
                one for one, line in lines.items() if not line and Target(key, one) not in existing
            ]:
                del lines[adapter]
            if not lines:
                del self._lines[key]
        self._cold_starts.forget(existing)
        line = self._lines[target.deployment][target.adapter] = Line(self.settings.requests)
        return line
