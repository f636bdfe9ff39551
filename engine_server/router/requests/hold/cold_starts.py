"""The durations of cold starts, from which the time until a replica can answer is estimated."""

from collections import defaultdict, deque
from collections.abc import Container
from statistics import median

from engine_server.router.routing.directory import Target

# Cold starts of each deployment, and of each adapter, that are remembered.
REMEMBERED = 5
# A start that takes longer has failed, or was undone.
LONGEST_SECONDS = 3600.0
# For one that was not started before.
DEFAULT_SECONDS = 30.0


class ColdStarts:
    """Cold starts of deployments and adapters: those in progress, and the last durations.

    Times are in seconds, on one clock.
    """

    def __init__(self) -> None:
        self.begun: dict[Target, float] = {}
        self._durations: defaultdict[Target, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def begin(self, target: Target, now: float) -> None:
        """Record that requests wait for the first replica; a start that is in progress continues."""
        self.begun.setdefault(target, now)

    def end(self, target: Target, now: float) -> None:
        """Record that a replica is live, which ends the start, if one is in progress."""
        if target in self.begun:
            self._durations[target].append(now - self.begun.pop(target))

    def expire(self, now: float) -> None:
        """Forget starts that have failed."""
        for target in [target for target, begun in self.begun.items() if now - begun > LONGEST_SECONDS]:
            del self.begun[target]

    def forget(self, existing: Container[Target]) -> None:
        """Forget all but those in `existing`."""
        for recorded in (self.begun, self._durations):
            for target in [target for target in recorded if target not in existing]:
                del recorded[target]

    def remaining(self, target: Target, now: float) -> float:
        """Return the estimated seconds until a replica is live: the median of the last starts, less what has passed."""
        durations = self._durations.get(target)
        expected = median(durations) if durations else DEFAULT_SECONDS
        return max(0.0, expected - (now - self.begun.get(target, now)))
