"""The runners of all ranks, which make the same calls in the same order."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from engine_server.core.distributed.worker_processes import WorkerProcesses
from engine_server.core.runner import CollectiveCalls, Runner

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class Ranks:
    """The first rank's runner in this process, and the others' in processes of their own."""

    def __init__(self, first: Runner, workers: WorkerProcesses) -> None:
        self._first = first
        self._workers = workers

    @property
    def size(self) -> int:
        return self._workers.communicator.size

    def run(self, method: Callable[[CollectiveCalls, *Ts], R], *args: *Ts) -> R:
        """Call a method on every rank; return the first rank's result. Raises EngineDeadError if a rank has ended."""
        self.run_on_others(method, *args)
        result: R = getattr(self._first, method.__name__)(*args)
        return result

    def run_on_others(self, method: Callable[[CollectiveCalls, *Ts], object], *args: *Ts) -> None:
        """Call a method on every rank but the first. Raises EngineDeadError if one has ended."""
        self._workers.broadcast(method.__name__, *args)

    def check(self, patience: float = 0.0) -> None:
        """Raise EngineDeadError if a rank has ended, or ends within `patience` seconds."""
        self._workers.check(patience)
