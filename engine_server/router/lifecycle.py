"""One request's stay in the router, from its arrival to whatever ends it."""

from operator import attrgetter
from time import perf_counter
from typing import Self

import msgspec

from .endpoints import Endpoint
from .errors import RequestError
from .metrics import Metrics
from .policy import Load

in_flight: Load[Endpoint] = attrgetter("in_flight")


class Lifecycle(msgspec.Struct):
    """Counts a request as under way at the endpoint it visits, for as long as the `with` block lasts: an
    answer's end, an error and a client that hangs up all leave through the same door."""

    metrics: Metrics
    started: float = msgspec.field(default_factory=perf_counter)
    waited: float | None = None  # seconds until an answer began
    endpoint: Endpoint | None = None
    model: str = ""
    status: int = 499  # what it stays if the client leaves before an answer; nginx's number for it

    def __enter__(self) -> Self:
        self.metrics.in_flight += 1
        return self

    def visit(self, endpoint: Endpoint) -> None:
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        self.endpoint = endpoint
        endpoint.in_flight += 1

    def answer(self, status: int) -> None:
        """The first byte is on its way to the client."""
        self.status = status
        self.waited = perf_counter() - self.started

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RequestError):
            self.answer(error.status)
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        self.metrics.in_flight -= 1
        self.metrics.request(self.model, self.status, self.waited, perf_counter() - self.started)
