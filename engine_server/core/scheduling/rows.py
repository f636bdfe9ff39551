"""What steps read of running requests by their row of the block table."""

from typing import Protocol

from engine_server.core.scheduling.request import Request


class Rows(Protocol):
    """Data that are written once, when a request gets its row, and cleared when it leaves it.

    A row may be given to another request while a step with the earlier one is in flight: what that step read of the
    row was copied when it was launched.
    """

    def open(self, row: int, request: Request) -> None:
        """Write what steps read of a request."""

    def close(self, row: int) -> None:
        """Clear a row."""
