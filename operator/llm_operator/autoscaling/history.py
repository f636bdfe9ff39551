"""The demand for one LLMDeployment over time. No I/O."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from llm_operator.api.sections.autoscaling import Autoscaling

# A replica whose KV cache is fuller than this preempts requests soon.
KV_TARGET = 0.8
# Without a sample for so long, demand may have come and gone unseen.
LONGEST_GAP_SECONDS = 10.0
# Averages and sums of shares are exact to so many digits.
DIGITS = 6


class Load(NamedTuple):
    """Demand at a time, or its average."""

    # In flight and held, over all routers.
    requests: float
    # The sum of the shares of the KV caches that are in use: 1.5 fills one and a half replicas.
    kv: float

    def replicas(self, target_in_flight: int) -> int:
        """Return the replicas that it needs."""
        return max(self.by_requests(target_in_flight), ceil(round(self.kv / KV_TARGET, DIGITS)))

    def by_requests(self, target_in_flight: int) -> int:
        """Return the replicas that its requests need."""
        return ceil(round(self.requests / target_in_flight, DIGITS))


class Sample(NamedTuple):
    """Demand as the routers reported it at one time, in seconds of any steady clock."""

    time: float
    load: Load
    # The least time since a router's last request; 0.0 while there are requests.
    idle_seconds: float
    # Every router has answered. Otherwise the load is only a lower bound.
    is_complete: bool
    is_ready: bool
    is_at_zero: bool = False


class Summary(NamedTuple):
    """The demand over the windows up to the last sample."""

    stable: Load
    panic: Load
    # The most replicas that were needed within the scale-down delay.
    peak: int
    # Seconds for which every sample was complete, up to now; None if the last one is not.
    known_seconds: float | None
    # Seconds without a request, from the first readiness; 0.0 before.
    idle_seconds: float


@dataclass(slots=True)
class History:
    """The samples of the longest window, and what is known of the time before."""

    samples: deque[Sample] = field(default_factory=deque)
    # Times and needed replicas, in decreasing order of need: the first is the peak of the scale-down delay.
    peaks: deque[tuple[float, int]] = field(default_factory=deque)
    known_since: float | None = None
    # The first readiness since zero: replicas that crash again and again become idle too.
    ready_since: float | None = None
    # The last time at which there was a request.
    busy_at: float | None = None

    def record(self, sample: Sample, autoscaling: Autoscaling) -> Summary:
        """Add a sample, which is newer than all others, and return the summary up to it."""
        now = sample.time
        is_gap = bool(self.samples) and now - self.samples[-1].time > LONGEST_GAP_SECONDS
        if not sample.is_complete:
            self.known_since = None
        elif self.known_since is None or is_gap:
            self.known_since = now
        if sample.is_at_zero:
            self.ready_since = None
        elif self.ready_since is None and sample.is_ready:
            self.ready_since = now
        busy_at = now - sample.idle_seconds
        self.busy_at = busy_at if self.busy_at is None else max(self.busy_at, busy_at)

        self.samples.append(sample)
        while self.samples[0].time <= now - autoscaling.stable_window_seconds:
            self.samples.popleft()
        recent = now - autoscaling.panic_window_seconds
        stable = average(one.load for one in self.samples)
        panic = average(one.load for one in self.samples if one.time > recent)
        peak = self._peak(stable, panic, now, autoscaling)
        known_seconds = now - self.known_since if self.known_since is not None else None
        idle_since = max(self.busy_at, self.ready_since) if self.ready_since is not None else now
        return Summary(stable, panic, peak, known_seconds, now - idle_since)

    def _peak(self, stable: Load, panic: Load, now: float, autoscaling: Autoscaling) -> int:
        """Add the need of now, and return the greatest of the scale-down delay."""
        target = autoscaling.target_in_flight
        needed = max(stable.replicas(target), panic.replicas(target))
        while self.peaks and self.peaks[-1][1] <= needed:
            self.peaks.pop()
        self.peaks.append((now, needed))
        while self.peaks[0][0] <= now - autoscaling.scale_down_delay_seconds:
            self.peaks.popleft()
        return self.peaks[0][1]


def average(loads: Iterable[Load]) -> Load:
    listed = list(loads)
    requests = sum(load.requests for load in listed) / len(listed)
    return Load(requests, sum(load.kv for load in listed) / len(listed))
