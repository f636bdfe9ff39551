"""Trials of grammars before their requests are queued."""

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import msgspec

from engine_server.requests.messages import Vocabulary
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_line import CallerId, PendingTrial, TrialLine
from engine_server.structured.trial_process import Verdict
from engine_server.structured.trial_worker import TrialWorker, WorkerEndedError

# Maximum number of grammars whose verdicts are kept.
MAX_VERDICTS = 1024


class GrammarTrials:
    """Trials of grammars in a process that starts with the first one. Methods may be called by any thread.

    A grammar that passes compiles within the same limits of time and memory anywhere else.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Reentrant, since a verdict's callbacks may call `_withdraw`.
        self._lock = threading.RLock()
        # By a hash of the descriptions of the grammar and its parts.
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        # Grammars whose trial was ended once. A stalled machine may have been the cause, so they are tried again.
        self._ended_once: OrderedDict[bytes, None] = OrderedDict()
        self._line = TrialLine()
        # Writes may block until the process has room.
        self._writer = ThreadPoolExecutor(1, "grammar trials")
        self._worker: TrialWorker | None = None

    def start(
        self,
        params: StructuredOutputsParams,
        caller: CallerId = None,
        parts: Sequence[StructuredOutputsParams] = (),
    ) -> Future[Verdict]:
        """Return a grammar's verdict, once it has been tried. A request that no longer wants it cancels it.

        parts: grammars of its parts, whose faults the verdict has if the grammar can't be used.

        Raises QueueFullError, or ShareUsedError if the caller has too many trials already.
        """
        description = msgspec.structs.replace(params, starts_after=None)
        tried = hashlib.sha256(msgspec.msgpack.encode(description))
        for part in parts:
            tried.update(msgspec.msgpack.encode(part))
        digest = tried.digest()
        verdict: Future[Verdict] = Future()
        with self._lock:
            if digest in self._verdicts:
                self._verdicts.move_to_end(digest)
                verdict.set_result(self._verdicts[digest])
                return verdict
            trial = self._line.find(caller, digest)
            if trial is None:
                trial = PendingTrial(caller, digest, description, parts)
                self._line.add(trial)
            trial.verdicts.append(verdict)
            self._advance()
        verdict.add_done_callback(partial(self._withdraw, trial))
        return verdict

    def _withdraw(self, trial: PendingTrial, verdict: Future[Verdict]) -> None:
        """Take a trial out of the line once the last of its requests has cancelled its verdict."""
        if verdict.cancelled():
            with self._lock:
                trial.verdicts.remove(verdict)
                if not trial.verdicts:
                    self._line.withdraw(trial)

    def _advance(self) -> None:
        """Begin the trials whose turn it is. The lock is held."""
        while (trial := self._line.begin_next()) is not None:
            known = self._verdicts.get(trial.digest)  # tried for another caller meanwhile
            if known is None:
                self._writer.submit(self._send, trial)
            else:
                self._end(trial, known)

    def _end(self, trial: PendingTrial, outcome: Verdict | Exception) -> None:
        """Give a trial's requests their verdict, unless they have it. The lock is held."""
        if not self._line.end(trial):
            return
        for verdict in trial.verdicts:
            if verdict.set_running_or_notify_cancel():
                if isinstance(outcome, Exception):
                    verdict.set_exception(outcome)
                else:
                    verdict.set_result(outcome)

    def _finish(self, trial: PendingTrial, outcome: Verdict | Exception) -> None:
        """End a trial that was sent to the process, and begin the next."""
        with self._lock:
            if isinstance(outcome, Verdict):
                self._keep(trial.digest, outcome)
            self._end(trial, outcome)
            self._advance()

    def _keep(self, digest: bytes, verdict: Verdict) -> None:
        """Keep a verdict, but for that of a grammar whose trial was ended for the first time. The lock is held."""
        if verdict.ended and digest not in self._ended_once:
            self._ended_once[digest] = None
            if len(self._ended_once) > MAX_VERDICTS:
                self._ended_once.popitem(last=False)
            return
        self._verdicts[digest] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)

    def _send(self, trial: PendingTrial) -> None:
        """Send a grammar to the process, and start another process if that has ended."""
        try:
            if self._worker is None or not self._worker.send(trial):
                self._worker = self._start_worker()
                if not self._worker.send(trial):
                    raise WorkerEndedError
        except Exception as error:
            self._finish(trial, error)

    def _start_worker(self) -> TrialWorker:
        if self._worker is not None:
            self._worker.close()
        worker = TrialWorker(self._vocabulary, partial(finish, weakref.ref(self)))
        weakref.finalize(self, worker.close)
        return worker


def finish(owner: weakref.ref[GrammarTrials], trial: PendingTrial, outcome: Verdict | Exception) -> None:
    """Pass on the outcome of a trial, unless its owner is gone."""
    if (trials := owner()) is not None:
        trials._finish(trial, outcome)
