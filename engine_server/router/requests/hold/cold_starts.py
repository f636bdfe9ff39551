"""The durations of cold starts, from which the time until a replica is ready is estimated."""

from collections import defaultdict, deque
from collections.abc import Container
from statistics import median

from engine_server.contract.api import Key

# Cold starts of each deployment that are remembered.
REMEMBERED = 5
# A start that takes longer has failed, or was undone.
LONGEST_SECONDS = 3600.0
# For a deployment that was not started before.
DEFAULT_SECONDS = 30.0


class ColdStarts:
    """Cold starts by deployment: those in progress, and the last durations. Times are in seconds, on one clock."""

    def __init__(self) -> None:
        self.begun: dict[Key, float] = {}
        self._durations: defaultdict[Key, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def begin(self, key: Key, now: float) -> None:
        """Record that requests wait for the first replica; a start that is in progress continues."""
        self.begun.setdefault(key, now)

    def end(self, key: Key, now: float) -> None:
        """Record that a replica is live, which ends the start, if one is in progress."""
        if key in self.begun:
            self._durations[key].append(now - self.begun.pop(key))

    def expire(self, now: float) -> None:
        """Forget starts that have failed."""
        for key in [key for key, begun in self.begun.items() if now - begun > LONGEST_SECONDS]:
            del self.begun[key]

    def forget(self, existing: Container[Key]) -> None:
        """Forget all deployments but those in `existing`."""
        for recorded in (self.begun, self._durations):
            for key in [key for key in recorded if key not in existing]:
                del recorded[key]

    def remaining(self, key: Key, now: float) -> float:
        """Return the estimated seconds until a replica is live: the median of the last starts, less what has passed."""
        durations = self._durations.get(key)
        expected = median(durations) if durations else DEFAULT_SECONDS
        return max(0.0, expected - (now - self.begun.get(key, now)))
