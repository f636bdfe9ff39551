"""The pause after starts that failed, which the operator counts and the router waits for."""

FIRST_SECONDS = 60.0
LONGEST_SECONDS = 1800.0


def pause_seconds(count: int) -> float:
    """Return the seconds for which no request starts a replica again, after so many failed starts in a row."""
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(count, 16))
