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
    # The head or the trailers of an answer, beyond the limits; the answer counts as failed.
    HEAD_TOO_LARGE = "head_too_large"
    # Unfinished events for which there was no memory; the stream was broken off.
    NO_MEMORY = "no_memory"
    # A body on the internal port; the request is refused.
    UNEXPECTED_BODY = "unexpected_body"
    # An idle connection, which is closed because all places are taken and another client waits for one.
    IDLE_CONNECTION = "idle_connection"
    # A body that is not declared as JSON; the request is refused.
    NOT_JSON = "not_json"
    # A name of another site, on a loopback address; the request is refused.
    UNKNOWN_HOST = "unknown_host"


class Rejections:
    """Counts by sender and reason, which are labels of a metric: neither has a value that a sender chose."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[Sender, Reason]] = Counter()

    def add(self, sender: Sender, reason: Reason) -> None:
        """Count one rejection."""
        self.counts[sender, reason] += 1
