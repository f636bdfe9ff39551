"""Counts of what clients and engines sent and the router did not accept."""

from collections import Counter
from enum import StrEnum


class Sender(StrEnum):
    """The side that sent what was rejected."""

    CLIENT = "client"
    ENGINE = "engine"


class Reason(StrEnum):
    """The rule that rejected it."""

    # A number of a report or a header that is out of its range; the report is ignored.
    OUT_OF_RANGE = "out_of_range"
    # A body with so many lists, objects or entries that its scan would block other requests.
    TOO_MANY_VALUES = "too_many_values"


class Rejections:
    """Counts by sender and reason, which are labels of a metric: neither has a value that a sender chose."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Sender, Reason]] = Counter()

    def add(self, sender: Sender, reason: Reason) -> None:
        """Count one rejection."""
        self.counts[sender, reason] += 1
