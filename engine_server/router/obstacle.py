"""The state of a deployment that has no ready replica, as its source reports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a deployment from being ready. Without a reason nothing is known."""

    # A word for it, which callers are told.
    reason: str = ""
    # It may quote what a pod printed, so only the log has it.
    message: str = ""
    # No replica will come until somebody acts.
    permanent: bool = False
    # Time (seconds since the epoch) before which a start is not tried again, and no request waits for one.
    retry_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.message} ({self.reason})" if self.message else self.reason


UNKNOWN = Obstacle()
