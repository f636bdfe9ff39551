"""The watch over open attempts: it breaks those whose engine is silent for too long."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
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
    # Delay of a sweep after which the router itself stood still, so that no silence means anything.
    late: float = 0.5
    # Silence after which the engine is probed.
    silence: float = 5.0
    probe_interval: float = 1.0
    # After which a probe has failed.
    probe_timeout: float = 2.0
    # Silence after which a stream is broken off, whatever probes say. Engines send a comment every 15 s.
    stall: float = 45.0
    # The same before the first event of an engine of another make, if it is longer: it sends its head at once, and no
    # comments while a prompt waits. Compressed events are not seen at all.
    first_event: float = 600.0
    # Silence in the middle of a refusal after which the rest of it is not waited for.
    refusal: float = 1.0
    # Silence after a client's deadline, at which the engine ends the answer, after which that is not waited for.
    grace: float = 2.0


class Probes:
    """The probes of one endpoint while attempts at it are silent."""

    def __init__(self) -> None:
        # For each probe that failed since the last one that was answered: the time of the sweep before it.
        self._failed: deque[float] = deque(maxlen=MAX_FAILED_PROBES)
        self.task: asyncio.Task[None] | None = None

    def record(self, sent: float, status: int | None) -> None:
        """Record the result of a probe that was sent after the sweep at the time `sent`."""
        if status is None:
            self._failed.append(sent)
        else:
            self._failed.clear()

    def have_failed_since(self, time: float) -> bool:
        """Return True if MAX_FAILED_PROBES in a row were sent since this time and failed."""
        return len(self._failed) == MAX_FAILED_PROBES and self._failed[0] >= time

    def stop(self) -> None:
        """Send no more probes."""
        if self.task is not None:
            self.task.cancel()


class Watch:
    """Sweeps over the open attempts.

    An engine may think for as long as it likes, but while it is silent it has to answer probes of its `/ready`, with
    any status. The attempts of an engine that does not are broken: its process is stopped, or its node is gone. Only
    sweeps decide: one that is late shows that the router itself stood still, and all silences begin anew.

    The loss of a node is noticed by the kernel, earlier than usual on the connection of a stream that lasts.
    """

    def __init__(self, health: Health, times: WatchTimes) -> None:
        self._health = health
        self._times = times
        # Attempts that are sent and have no outcome. The attempt loop adds and removes them.
        self.open: set[Relay] = set()
        self._probes: dict[Endpoint, Probes] = {}
        # Time of the last sweep.
        self._swept_at = inf

    async def run(self) -> None:
        """Sweep until cancelled."""
        self._swept_at = perf_counter()
        while True:
            await asyncio.sleep(self._times.sweep)
            self.sweep(perf_counter())

    def sweep(self, now: float) -> None:
        """Break attempts that have been silent for too long at the time `now` (perf_counter), and adjust the probes."""
        times = self._times
        if now - self._swept_at > times.sweep + times.late:
            self._begin_anew(now)
        self._swept_at = now
        silent: defaultdict[Endpoint, list[Relay]] = defaultdict(list)
        for relay in [*self.open]:
            journal = relay.lifecycle.journal
            is_continuable = journal is not None and journal.begun and journal.complete
            if is_continuable and relay.events is not None and relay.connection is not None:
                relay.connection.detect_loss_early()
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
            elif silence >= (longest := self._longest_silence(relay)):
                self._break([relay], f"a stream was silent for {longest:g} s")
            elif silence >= times.silence:
                assert relay.lifecycle.endpoint is not None
                silent[relay.lifecycle.endpoint].append(relay)
        self._probe_silent(silent)

    def _longest_silence(self, relay: Relay) -> float:
        """Return the silence in seconds after which a stream is broken off, whatever probes say; inf: none is."""
        times = self._times
        if relay.events is None and not relay.compressed:
            return inf
        if relay.events is not None and (relay.has_fingerprint or relay.events.begun):
            return times.stall
        return max(times.stall, times.first_event)

    def _begin_anew(self, now: float) -> None:
        """Begin all silences at the time `now`, and the probes after them."""
        for relay in self.open:
            relay.silent_since = now
        for probes in self._probes.values():
            probes.stop()
        self._probes.clear()

    def _probe_silent(self, silent: dict[Endpoint, list[Relay]]) -> None:
        """Probe the endpoints of silent attempts, and no others, and break attempts by the probes that failed."""
        for endpoint in self._probes.keys() - silent.keys():
            self._probes.pop(endpoint).stop()
        for endpoint, relays in silent.items():
            probes = self._probes.get(endpoint)
            if probes is None:
                probes = self._probes[endpoint] = Probes()
                probes.task = asyncio.get_running_loop().create_task(self._probe(endpoint, probes))
            lost = [relay for relay in relays if probes.have_failed_since(relay.silent_since)]
            self._break(lost, "it answers neither requests nor probes")

    async def _probe(self, endpoint: Endpoint, probes: Probes) -> None:
        """Probe an endpoint until cancelled."""
        while True:
            sent = self._swept_at
            # Any status is a sign of life; a path of readiness of another make may wait for the model.
            probes.record(sent, await probe(endpoint.address, self._times.probe_timeout))
            await asyncio.sleep(self._times.probe_interval)

    def _break(self, relays: Sequence[Relay], reason: str) -> None:
        """Break attempts at one endpoint, which is suspect."""
        for relay in relays:
            assert relay.lifecycle.endpoint is not None
            self._health.suspect(relay.lifecycle.endpoint, reason, Cause.SILENT)
            relay.break_off()
