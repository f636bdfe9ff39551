"""The demand for one LLMDeployment over time. No I/O."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import NamedTuple

from llm_operator.api.sections.autoscaling import Autoscaling

# A replica whose KV cache is fuller than this preempts requests soon.
KV_TARGET = 0.8
# Without a sample for so long, demand may have come and gone unseen.
LONGEST_GAP_SECONDS = 10.0
# The sums that a window keeps; longer ones have buckets of several samples.
MOST_BUCKETS = 120
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
class Bucket:
    """The sum of successive samples."""

    # Of the first sample.
    time: float
    requests: float = 0.0
    kv: float = 0.0
    count: int = 0


@dataclass(slots=True)
class Window:
    """The average load over a time that moves, from sums in at most about MOST_BUCKETS buckets.

    A window of up to MOST_BUCKETS seconds has a bucket for each sample. A longer one forgets a bucket as a whole, so
    its average covers up to a bucket's time less.
    """

    buckets: deque[Bucket] = field(default_factory=deque)
    # The sum of all but the last.
    earlier: Bucket = field(default_factory=lambda: Bucket(0.0))

    def add(self, time: float, load: Load, seconds: float) -> Load:
        """Add the load at a time that is later than all others, and return the average of the last `seconds`."""
        width = seconds / MOST_BUCKETS if seconds > MOST_BUCKETS else 0.0
        is_new = not self.buckets or time - self.buckets[-1].time >= width
        if is_new:
            self.buckets.append(Bucket(time))
        last = self.buckets[-1]
        last.requests += load.requests
        last.kv += load.kv
        last.count += 1
        is_passed = self.buckets[0].time <= time - seconds
        while self.buckets[0].time <= time - seconds:
            self.buckets.popleft()
        if is_new or is_passed:
            self.earlier = total(islice(self.buckets, len(self.buckets) - 1))
        count = self.earlier.count + last.count
        return Load((self.earlier.requests + last.requests) / count, (self.earlier.kv + last.kv) / count)


def total(buckets: Iterable[Bucket]) -> Bucket:
    """Return the sum, which has the time 0."""
    result = Bucket(0.0)
    for bucket in buckets:
        result.requests += bucket.requests
        result.kv += bucket.kv
        result.count += bucket.count
    return result


@dataclass(slots=True)
class History:
    """The load of both windows, and what is known of the time before."""

    stable: Window = field(default_factory=Window)
    panic: Window = field(default_factory=Window)
    recorded_at: float | None = None
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
        is_gap = self.recorded_at is not None and now - self.recorded_at > LONGEST_GAP_SECONDS
        self.recorded_at = now
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

        stable = self.stable.add(now, sample.load, autoscaling.stable_window_seconds)
        panic = self.panic.add(now, sample.load, autoscaling.panic_window_seconds)
        peak = self._peak(stable, panic, now, autoscaling)
        known_seconds = now - self.known_since if self.known_since is not None else None
        idle_since = max(self.busy_at, self.ready_since) if self.ready_since is not None else now
        return Summary(stable, panic, peak, known_seconds, now - idle_since)

    def _peak(self, stable: Load, panic: Load, now: float, autoscaling: Autoscaling) -> int:
        """Add the need of now, and return the greatest of the scale-down delay.

        A need beyond the most replicas is kept as one more, so that there are only so many to keep.
        """
        target = autoscaling.target_in_flight
        needed = min(max(stable.replicas(target), panic.replicas(target)), autoscaling.max + 1)
        while self.peaks and self.peaks[-1][1] <= needed:
            self.peaks.pop()
        self.peaks.append((now, needed))
        while self.peaks[0][0] <= now - autoscaling.scale_down_delay_seconds:
            self.peaks.popleft()
        return self.peaks[0][1]
