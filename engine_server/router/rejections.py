"""Counts of what clients and engines sent and the router did not accept."""

import logging
from collections import Counter
from enum import StrEnum
from itertools import product

from engine_server.router.recent_subjects import RecentSubjects

log = logging.getLogger(__name__)


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
    # An answer that its client does not take, or too slowly, or for which there is no memory; the connection is reset.
    UNREAD_ANSWER = "unread_answer"
    # A body that is not declared as JSON; the request is refused.
    NOT_JSON = "not_json"
    # A name of another site, on a loopback address; the request is refused.
    UNKNOWN_HOST = "unknown_host"
    # More tokens than a request can have used: it is charged no more than that.
    USAGE_CUT = "usage_cut"
    # A body with so many lists, objects or entries that its scan would block other requests.
    TOO_MANY_VALUES = "too_many_values"


class Rejections:
    """Counts by sender and reason, which are labels of a metric: neither has a value that a sender chose."""

    def __init__(self) -> None:
        # All of them from the start, since Prometheus sees no increase in a series' first value.
        self.counts: Counter[tuple[Sender, Reason]] = Counter(dict.fromkeys(product(Sender, Reason), 0))
        self._logged = RecentSubjects()

    def add(self, sender: Sender, reason: Reason, count: int = 1) -> None:
        """Count rejections."""
        self.counts[sender, reason] += count

    def report(self, sender: Sender, reason: Reason, subject: str, message: str, now: float) -> None:
        """Count one rejection, and log it unless one with the same subject was logged in the last minute."""
        self.add(sender, reason)
        if self._logged.add(subject, now):
            log.warning("%s: %s", subject, message)
