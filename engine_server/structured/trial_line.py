"""The order of trials of grammars: callers take turns, and each has a share of those that run and those that wait."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from engine_server.requests.errors import QueueFullError, ShareUsedError
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_process import MAX_FORKS, Verdict

# Trials of one caller that run at once. Requests without a caller may have them all.
MAX_RUNNING_OF_CALLER = 2
# Trials that wait, of one caller and of all.
MAX_WAITING_OF_CALLER = 64
MAX_WAITING = 1024

# A caller's id; None for all requests that have none.
CallerId = str | None


@dataclass(slots=True, eq=False)
class PendingTrial:
    """A grammar that a caller's requests wait for. Grammars with the same digest are equal."""

    caller: CallerId
    digest: bytes
    params: StructuredOutputsParams
    # See `trial_process.Trial`.
    parts: Sequence[StructuredOutputsParams] = ()
    # One for each of the requests.
    verdicts: list[Future[Verdict]] = field(default_factory=list)


# By caller and digest.
Trials = OrderedDict[CallerId, dict[bytes, PendingTrial]]


class TrialLine:
    """The trials that wait, each caller's in the order of arrival, and those that run."""

    def __init__(self) -> None:
        # The caller whose turn is next comes first.
        self._waiting: Trials = OrderedDict()
        self._running: Trials = OrderedDict()

    def find(self, caller: CallerId, digest: bytes) -> PendingTrial | None:
        """Return a caller's trial that waits or runs, or None."""
        waiting, running = self._waiting.get(caller, {}), self._running.get(caller, {})
        return waiting.get(digest) or running.get(digest)

    def add(self, trial: PendingTrial) -> None:
        """Add a trial behind the caller's others. Raises QueueFullError or ShareUsedError."""
        waiting = count(self._waiting)
        if trial.caller is not None and len(self._waiting.get(trial.caller, ())) >= MAX_WAITING_OF_CALLER:
            raise ShareUsedError(
                f"{MAX_WAITING_OF_CALLER} new grammars of this caller wait to be compiled, the most that may; "
                "try again later"
            )
        if waiting >= MAX_WAITING:
            raise QueueFullError(
                f"{waiting} new grammars wait to be compiled, of {MAX_WAITING} at most; try again later"
            )
        self._waiting.setdefault(trial.caller, {})[trial.digest] = trial

    def withdraw(self, trial: PendingTrial) -> None:
        """Remove a trial if it waits; one that runs goes on."""
        remove(self._waiting, trial)

    def begin_next(self) -> PendingTrial | None:
        """Return the trial whose turn it is, which runs from now on; None if none may run now."""
        if count(self._running) == MAX_FORKS:
            return None
        for caller, trials in self._waiting.items():
            limit = MAX_FORKS if caller is None else MAX_RUNNING_OF_CALLER
            if len(self._running.get(caller, ())) < limit:
                trial = next(iter(trials.values()))
                self._waiting.move_to_end(caller)
                remove(self._waiting, trial)
                self._running.setdefault(caller, {})[trial.digest] = trial
                return trial
        return None

    def end(self, trial: PendingTrial) -> bool:
        """Remove a trial, and return False if it does not run."""
        return remove(self._running, trial)


def count(trials: Trials) -> int:
    return sum(map(len, trials.values()))


def remove(trials: Trials, trial: PendingTrial) -> bool:
    """Remove a trial, and its caller with the last one. Return False if it is not among them."""
    of_caller = trials.get(trial.caller, {})
    if of_caller.get(trial.digest) is not trial:
        return False
    del of_caller[trial.digest]
    if not of_caller:
        del trials[trial.caller]
    return True
