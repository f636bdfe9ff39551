"""The health of endpoints: which are live, why others are ejected, and the probes that bring them back."""

import asyncio
import logging
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from random import uniform
from time import perf_counter

from engine_server.contract.cluster.api import Key
from engine_server.router.routing.endpoint import READY_PATH, Endpoint, EngineAddress

log = logging.getLogger(__name__)

# Failures in a row, without a success between them, that eject an endpoint.
BURST = 5
# Seconds in which the count of an endpoint's ejections decays to half.
EJECTIONS_HALF_LIFE = 300.0
# Limit of that count; more would not lengthen an interval.
MAX_RECENT_EJECTIONS = 8.0
# Share by which the interval between two probes varies, so that routers don't probe in step.
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Intervals and limits of probes, in seconds."""

    # Interval before the first probe after an ejection. It doubles with each failed probe and each recent ejection.
    shortest: float = 0.25
    longest: float = 30.0
    # Longest interval of an endpoint that was not live yet, and of all while none of the deployment is live.
    longest_urgent: float = 1.0
    # After which a probe has failed.
    timeout: float = 2.0


DEFAULT_TIMES = ProbeTimes()


class Cause(StrEnum):
    """The class of an ejection's reason."""

    # No connection could be opened.
    UNREACHABLE = "unreachable"
    # It answered that it takes no requests.
    REFUSING = "refusing"
    # Failures in a row.
    FAILING = "failing"
    # It sent nothing for too long.
    SILENT = "silent"
    # Its address belongs to another deployment.
    MOVED = "moved"


class Health:
    """Which of the known endpoints are live. One that is ejected is probed until its path of readiness answers 200.

    An ejection is certain if the endpoint cannot be connected to or said itself that it takes no requests. All others
    are suspicions: they never eject more than half of a deployment's endpoints, since the cause may lie elsewhere.
    """

    def __init__(self, times: ProbeTimes = DEFAULT_TIMES) -> None:
        self._times = times
        self._known: defaultdict[Key, set[Endpoint]] = defaultdict(set)
        # The known endpoints that are not live, with their probes. An endpoint without a probe stays out.
        self.down: dict[Endpoint, asyncio.Task[None] | None] = {}
        # The number of times that a live endpoint was ejected, by cause.
        self.ejections: Counter[Cause] = Counter()

    def add(self, endpoint: Endpoint, live: bool) -> None:
        """Begin to follow an endpoint; unless it is known to be live, a probe has to succeed first."""
        self._known[endpoint.deployment].add(endpoint)
        if not live:
            self._begin_probes(endpoint, 0.0)

    def remove(self, endpoint: Endpoint) -> None:
        """Stop following an endpoint."""
        siblings = self._known[endpoint.deployment]
        siblings.discard(endpoint)
        self._stop_probes(endpoint)
        self._hasten_probes(endpoint.deployment)
        if not siblings:
            del self._known[endpoint.deployment]

    def is_live(self, endpoint: Endpoint) -> bool:
        """Return True if the endpoint may be given requests."""
        return endpoint not in self.down and endpoint in self._known.get(endpoint.deployment, ())

    def is_expendable(self, endpoint: Endpoint) -> bool:
        """Return True if at least half of its deployment's endpoints are live without one more."""
        siblings = self._known.get(endpoint.deployment, ())
        out = sum(sibling in self.down for sibling in siblings)
        return 2 * (out + 1) <= len(siblings)

    # Ejections: of endpoints that are not live, or not known any more, they change nothing

    def eject(self, endpoint: Endpoint, reason: str, cause: Cause = Cause.UNREACHABLE) -> None:
        """Give no requests to an endpoint until it is ready again."""
        if not self.is_live(endpoint):
            return
        now = perf_counter()
        decay = 0.5 ** ((now - endpoint.ejected_at) / EJECTIONS_HALF_LIFE)
        endpoint.recent_ejections = min(endpoint.recent_ejections * decay + 1.0, MAX_RECENT_EJECTIONS)
        endpoint.ejected_at = now
        self._record_ejection(endpoint, reason, cause)
        growth = 2.0 ** (endpoint.recent_ejections - 1.0)
        self._begin_probes(endpoint, min(self._times.shortest * growth, self._times.longest))
        self._hasten_probes(endpoint.deployment)

    def suspect(self, endpoint: Endpoint, reason: str, cause: Cause = Cause.FAILING) -> None:
        """Eject an endpoint, unless more than half of its deployment's endpoints would then be out."""
        if self.is_expendable(endpoint):
            self.eject(endpoint, reason, cause)

    def record_failure(self, endpoint: Endpoint, reason: str) -> None:
        """Count a failure of an endpoint that may be the request's own; BURST in a row are suspicious."""
        endpoint.failures_in_row += 1
        if endpoint.failures_in_row >= BURST:
            self.suspect(endpoint, f"{reason}, {endpoint.failures_in_row} times in a row")

    def retire(self, endpoint: Endpoint, reason: str) -> None:
        """Give no requests to an endpoint until its deployment lists it anew."""
        if self.is_live(endpoint):
            self._record_ejection(endpoint, reason, Cause.MOVED)
            self.down[endpoint] = None
            self._hasten_probes(endpoint.deployment)

    def _record_ejection(self, endpoint: Endpoint, reason: str, cause: Cause) -> None:
        log.warning("ejected endpoint %s of %s: %s", endpoint.address.described, endpoint.deployment, reason)
        self.ejections[cause] += 1
        endpoint.ejected_for = reason

    # Probes

    def _begin_probes(self, endpoint: Endpoint, interval: float) -> None:
        """Probe an endpoint after `interval` seconds, and again at growing intervals."""
        self._stop_probes(endpoint)
        probes = self._probe_until_ready(endpoint, interval)
        self.down[endpoint] = asyncio.get_running_loop().create_task(probes)

    def _stop_probes(self, endpoint: Endpoint) -> None:
        if probes := self.down.pop(endpoint, None):
            probes.cancel()

    def _hasten_probes(self, deployment: Key) -> None:
        """Begin the probes of a deployment again if it has just lost its last live endpoint."""
        if not self._has_live(deployment):
            for endpoint in self._known[deployment]:
                if self.down[endpoint] is not None:
                    self._begin_probes(endpoint, self._times.shortest)

    async def _probe_until_ready(self, endpoint: Endpoint, interval: float) -> None:
        while True:
            interval = min(interval, self._longest_interval(endpoint))
            await asyncio.sleep(jittered(interval))
            if await probe(endpoint.address, self._times.timeout, endpoint.ready_path) == 200:
                break
            interval = max(2.0 * interval, self._times.shortest)
        del self.down[endpoint]
        endpoint.begin_ramp(perf_counter())
        log.info("endpoint %s of %s is ready", endpoint.address.described, endpoint.deployment)

    def _longest_interval(self, endpoint: Endpoint) -> float:
        starting = endpoint.ejected_at == 0.0
        urgent = starting or not self._has_live(endpoint.deployment)
        return self._times.longest_urgent if urgent else self._times.longest

    def _has_live(self, deployment: Key) -> bool:
        return any(endpoint not in self.down for endpoint in self._known[deployment])


def jittered(interval: float) -> float:
    """Return an interval that varies around `interval`."""
    return interval * uniform(1.0 - JITTER, 1.0 + JITTER)


async def probe(address: EngineAddress, seconds: float, path: str = READY_PATH) -> int | None:
    """Return the status of a GET of the path of readiness, or None if there is no HTTP answer in so many seconds.

    0: the connection is refused. The machine is there, and has closed the connections of a process that has ended.
    """
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await address.open_streams()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            version, status, *_ = (await reader.readline()).split(b" ")
            return int(status) if version.startswith(b"HTTP/") else None
    except ConnectionRefusedError:
        return 0
    except (OSError, ValueError):
        return None
    finally:
        if writer is not None:
            with suppress(OSError):
                writer.close()
