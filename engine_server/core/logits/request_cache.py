"""Values that are built once for each running request."""

from collections.abc import Callable
from typing import Generic, TypeVar

from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest

T = TypeVar("T")


class RequestCache(Generic[T]):
    """A cache of `build`'s result for each request, until another request takes its row of the block table."""

    def __init__(self, build: Callable[[GenerationRequest], T]) -> None:
        self._build = build
        self._entries: dict[int, tuple[GenerationRequest, T]] = {}

    def get(self, scheduled: Scheduled) -> T:
        """Return the request's value; the row is the one that it had when the step was scheduled."""
        entry = self._entries.get(scheduled.row)
        if entry is None or entry[0] is not scheduled.request:
            request = scheduled.request
            assert isinstance(request, GenerationRequest)
            entry = self._entries[scheduled.row] = request, self._build(request)
        return entry[1]
