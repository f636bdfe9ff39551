"""The demand for each deployment: its requests that have not ended, and the time at which the last one did."""

from collections import Counter
from collections.abc import Collection
from time import perf_counter

from engine_server.contract.cluster.api import Key


class Demand:
    """Counts the requests of each deployment, from the choice of the deployment to the end of the answer."""

    def __init__(self) -> None:
        # Requests that wait for a replica are included.
        self.requests: Counter[Key] = Counter()
        self._started = perf_counter()
        self._ended: dict[Key, float] = {}

    def begin(self, deployment: Key) -> None:
        """Count a request."""
        self.requests[deployment] += 1

    def end(self, deployment: Key) -> None:
        """Count a request as ended."""
        self.requests[deployment] -= 1
        self._ended[deployment] = perf_counter()

    def idle_seconds(self, deployment: Key) -> float:
        """Return the time since the last request ended, or since the start; 0.0 while there are requests."""
        if self.requests[deployment]:
            return 0.0
        return perf_counter() - self._ended.get(deployment, self._started)

    def keep_only(self, deployments: Collection[Key]) -> None:
        """Forget deployments that were removed and have no request left."""
        for key in [key for key, count in self.requests.items() if not count and key not in deployments]:
            del self.requests[key]
            self._ended.pop(key, None)
