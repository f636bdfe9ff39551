"""The watch over open attempts: it breaks those whose engine is silent for too long."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter

from engine_server.router.requests.relay import Relay
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Cause, Health, probe

# Probes in a row without any answer after which the engine has failed.
MAX_FAILED_PROBES = 3


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """Intervals and limits of the watch, in seconds."""

    # Between two sweeps over the open attempts.
    sweep: float = 0.25
    # Silence after which the engine of a whole answer is probed.
    silence: float = 15.0
    probe_interval: float = 3.0
    # After which a probe has failed.
    probe_timeout: float = 2.0
    # Silence after which a stream is broken off. Engines send a comment every 15 s.
    stall: float = 45.0
    # Silence in the middle of a refusal after which the rest of it is not waited for.
    refusal: float = 1.0
    # Silence after a client's deadline, at which the engine ends the answer, after which that is not waited for.
    grace: float = 2.0


class Watch:
    """Sweeps over the open attempts.

    An engine may think about a whole answer for as long as it likes, but while it is silent it has to answer probes of
    its `/ready`, with any status. The attempts of an engine that does not are broken: its process is stopped, or its
    node is gone.
    """

    def __init__(self, health: Health, times: WatchTimes) -> None:
        self._health = health
        self._times = times
        # Attempts that are sent and have no outcome. The attempt loop adds and removes them.
        self.open: set[Relay] = set()
        self._probing: dict[Endpoint, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._times.sweep)
            self.sweep(perf_counter())

    def sweep(self, now: float) -> None:
        """Break attempts that have been silent for too long at the time `now` (perf_counter), and adjust the probes."""
        times = self._times
        silent: defaultdict[Endpoint, list[Relay]] = defaultdict(list)
        for relay in [*self.open]:
            source = relay.exchange.source
            paused = source is not None and not source.is_reading()  # the client reads slowly
            if relay.received or paused:
                relay.received = False
                relay.silent_since = now
                continue
            silence = now - relay.silent_since
            if relay.held:
                if silence >= times.refusal:
                    relay.break_off()
            elif min(silence, now - relay.lifecycle.deadline) >= times.grace:
                relay.break_off()
            elif relay.events is not None:
                if silence >= times.stall:
                    self._break_stream(relay)
            elif silence >= times.silence:
                assert relay.lifecycle.endpoint is not None
                silent[relay.lifecycle.endpoint].append(relay)
        self._update_probes(silent)

    def _break_stream(self, relay: Relay) -> None:
        assert relay.lifecycle.endpoint is not None
        self._health.suspect(
            relay.lifecycle.endpoint, f"a stream was silent for {self._times.stall:g} s", Cause.SILENT
        )
        relay.break_off()

    def _update_probes(self, silent: dict[Endpoint, list[Relay]]) -> None:
        """Probe the endpoints of silent attempts, and no others."""
        for endpoint in self._probing.keys() - silent.keys():
            self._probing.pop(endpoint).cancel()
        for endpoint in silent.keys() - self._probing.keys():
            self._probing[endpoint] = asyncio.get_running_loop().create_task(self._probe(endpoint))

    async def _probe(self, endpoint: Endpoint) -> None:
        """Probe an endpoint until it has not answered MAX_FAILED_PROBES in a row, and break its silent attempts."""
        times = self._times
        failed = 0
        silent_since = perf_counter()
        while True:
            if await probe(endpoint.address, times.probe_timeout) is None:
                failed += 1
            else:
                failed, silent_since = 0, perf_counter()
            if failed == MAX_FAILED_PROBES:
                break
            await asyncio.sleep(times.probe_interval)
        del self._probing[endpoint]
        self._health.suspect(endpoint, "it answers neither requests nor probes", Cause.SILENT)
        for relay in [*self.open]:
            if (
                relay.lifecycle.endpoint is endpoint
                and relay.events is None
                and relay.silent_since <= silent_since
            ):
                relay.break_off()
