"""A copy of the scheduler's state, for tests and bug reports."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class SchedulerState:
    """The requests and blocks between two calls of the scheduler."""

    # Ids of running requests, in the order in which they were admitted.
    running: tuple[str, ...]
    # Ids of waiting requests, in the order in which they will be admitted.
    waiting: tuple[str, ...]
    num_blocks: int
    num_free_blocks: int
    num_free_rows: int

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks
