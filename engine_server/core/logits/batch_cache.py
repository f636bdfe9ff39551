"""Values that are built once for consecutive steps of the same requests."""

from collections.abc import Callable
from typing import Generic, TypeVar

from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import Request

T = TypeVar("T")


class BatchCache(Generic[T]):
    """The result of `build` for the parts of a step, which depends on their requests alone."""

    def __init__(self, build: Callable[[Batch], T]) -> None:
        self._build = build
        # The requests of the latest step, and its value.
        self._latest: tuple[list[Request], T] | None = None

    def get(self, batch: Batch) -> T:
        requests = [scheduled.request for scheduled in batch]
        if self._latest is None or self._latest[0] != requests:
            self._latest = requests, self._build(batch)
        return self._latest[1]
