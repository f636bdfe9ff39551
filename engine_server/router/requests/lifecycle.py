"""The lifecycle of a request in the router, from its arrival to its end."""

from time import perf_counter
from typing import Self

import msgspec

from engine_server.router.errors import RequestError
from engine_server.router.metrics import Metrics
from engine_server.router.routing.endpoint import Endpoint

# nginx's status for a client that closed its connection before an answer.
CLIENT_CLOSED_REQUEST = 499


class Lifecycle(msgspec.Struct):
    """Counts a request as in flight, in the router and at its endpoint, for as long as the `with` block lasts.

    The end of the answer, an error and a client that hangs up all leave the block, so each of them counts down.
    """

    metrics: Metrics
    # Times and durations are in seconds (perf_counter).
    started: float = msgspec.field(default_factory=perf_counter)
    time_to_first_byte: float | None = None
    endpoint: Endpoint | None = None
    # Empty if the body does not name one that exists.
    model: str = ""
    status: int = CLIENT_CLOSED_REQUEST

    def __enter__(self) -> Self:
        self.metrics.in_flight += 1
        return self

    def visit(self, endpoint: Endpoint) -> None:
        """Count the request at `endpoint`, and no longer at the one before."""
        if self.endpoint is not None:
            self.endpoint.release()
        self.endpoint = endpoint
        endpoint.count(perf_counter())

    def record_answer(self, status: int) -> None:
        """Record the status of the answer, as its first byte is sent to the client."""
        self.status = status
        self.time_to_first_byte = perf_counter() - self.started

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RequestError):
            self.record_answer(error.status)
        if self.endpoint is not None:
            self.endpoint.release()
        self.metrics.in_flight -= 1
        duration = perf_counter() - self.started
        self.metrics.record(self.model, self.status, self.time_to_first_byte, duration)
