"""The budget of a deployment's retries, so that a failure of many of its replicas does not multiply their load."""

from collections import deque

WINDOW_SECONDS = 10
# Retries per request of the window.
SHARE = 0.2
# Retries that are allowed in any window, however few the requests.
MINIMUM = 10


class RetryBudget:
    """Allows a retry if those of the last WINDOW_SECONDS stay within SHARE of the requests then, or within MINIMUM.

    Times are in seconds of any clock that only grows. Requests are counted by the second: those of the window's
    oldest, partial second are not counted.
    """

    def __init__(self) -> None:
        # Requests in the seconds of the window before the current one, oldest first.
        self._earlier: deque[int] = deque([0] * (WINDOW_SECONDS - 1), WINDOW_SECONDS - 1)
        self._current = 0
        # End of the current second.
        self._turn = 0.0
        # Times of the retries in the window.
        self._retries: deque[float] = deque()

    def count(self, now: float) -> None:
        """Count a request."""
        if now >= self._turn:
            self._advance(now)
        self._current += 1

    def spend(self, now: float) -> bool:
        """Count a retry and return True, or return False if the budget is spent."""
        if now >= self._turn:
            self._advance(now)
        retries = self._retries
        while retries and retries[0] <= now - WINDOW_SECONDS:
            retries.popleft()
        if len(retries) + 1 > max(MINIMUM, SHARE * (sum(self._earlier) + self._current)):
            return False
        retries.append(now)
        return True

    def _advance(self, now: float) -> None:
        """Begin the second of `now`."""
        if now >= self._turn + WINDOW_SECONDS:
            self._earlier.extend([0] * WINDOW_SECONDS)
            self._turn = now + 1.0
        else:
            while now >= self._turn:
                self._earlier.append(self._current)
                self._current = 0
                self._turn += 1.0
        self._current = 0
