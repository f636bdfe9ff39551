"""One request's stay in the router, from its arrival to whatever ends it."""

from operator import attrgetter
from time import perf_counter
from typing import Self

from .endpoints import Endpoint
from .errors import RequestError
from .metrics import Metrics
from .policy import Load

in_flight: Load[Endpoint] = attrgetter("in_flight")


class Lifecycle:
    """Counts a request as under way at the endpoint it visits, for as long as the `with` block lasts: an
    answer's end, an error and a client that hangs up all leave through the same door."""

    _endpoint: Endpoint | None = None
    _waited: float | None = None  # seconds until an answer began
    model = ""
    status = 499  # what it stays if the client leaves before an answer; nginx's number for it

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> Self:
        self._started = perf_counter()
        self._metrics.in_flight += 1
        return self

    def visit(self, endpoint: Endpoint) -> None:
        if self._endpoint is not None:
            self._endpoint.in_flight -= 1
        self._endpoint = endpoint
        endpoint.in_flight += 1

    def answer(self, status: int) -> None:
        """The first byte is on its way to the client."""
        self.status = status
        self._waited = perf_counter() - self._started

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RequestError):
            self.answer(error.status)
        if self._endpoint is not None:
            self._endpoint.in_flight -= 1
        self._metrics.in_flight -= 1
        self._metrics.request(self.model, self.status, self._waited, perf_counter() - self._started)
