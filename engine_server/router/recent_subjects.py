"""The subjects of recent log lines, by which what happens again and again is logged once a minute."""

# Between two log lines on one subject.
LOG_SECONDS = 60.0


class RecentSubjects:
    """Remembers the subjects of the log lines of the last minute."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def add(self, subject: str, now: float) -> bool:
        """Return True if no line on this subject was logged in the last minute: it is to be logged now."""
        self._logged = {known: time for known, time in self._logged.items() if now < time + LOG_SECONDS}
        is_new = subject not in self._logged
        self._logged.setdefault(subject, now)
        return is_new
