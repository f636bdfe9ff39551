"""Counts of drafts and of those that were accepted."""

from collections import Counter
from typing import Any


class DraftCounts:
    """The drafts that steps have verified since the counts were last taken."""

    def __init__(self) -> None:
        # By number of drafts of a request in a step, and by how many of them were accepted.
        self._drafted: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()

    def count(self, drafted: int, accepted: int) -> None:
        """Count a request's drafts in a step, of which the first `accepted` were accepted."""
        self._drafted[drafted] += 1
        self._accepted[accepted] += 1

    def take(self) -> dict[str, Any]:
        """Return the counts as fields of SchedulerStats, and begin again."""
        drafted, accepted = self._drafted, self._accepted
        self._drafted, self._accepted = Counter(), Counter()
        return {
            "num_drafts": drafted.total(),
            "num_draft_tokens": sum(length * times for length, times in drafted.items()),
            "num_accepted_tokens": sum(length * times for length, times in accepted.items()),
            "accepted_per_position": [
                sum(times for length, times in accepted.items() if length > position)
                for position in range(max(accepted, default=0))
            ],
        }
