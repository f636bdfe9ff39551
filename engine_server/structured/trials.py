"""Trials of grammars before their requests are queued."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from engine_server.contract.base.bounded_map import BoundedMap
from engine_server.forks.fork_worker import Finish, ForkWorker
from engine_server.forks.forked_tasks import ForkedTasks
from engine_server.forks.task_line import CallerId, Shares, TaskLine
from engine_server.requests.messages import Vocabulary
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_process import MAX_FORKS, Trial, Verdict

# Maximum number of grammars whose verdicts are kept.
MAX_VERDICTS = 1024
SHARES = Shares(running=MAX_FORKS, running_of_caller=2, waiting=1024, waiting_of_caller=64)


class GrammarTrials(ForkedTasks[Verdict]):
    """Trials of grammars in a process that starts with the first one. Methods may be called by any thread.

    A grammar that passes compiles within the same limits of time and memory anywhere else.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(TaskLine("new grammars", "to be compiled", SHARES), "grammar trials")
        self._vocabulary = vocabulary
        # By a hash of the descriptions of the grammar and its parts.
        self._verdicts = BoundedMap[bytes, Verdict](MAX_VERDICTS)
        # Grammars whose trial was ended once. A stalled machine may have been the cause, so they are tried again.
        self._ended_once = BoundedMap[bytes, Verdict](MAX_VERDICTS)

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
        return self._submit(tried.digest(), Trial(description, list(parts)), caller)

    def _start_worker(self, finish: Finish) -> ForkWorker:
        return ForkWorker("engine_server.structured.trial_process", self._vocabulary, finish)

    def _decode(self, content: bytes | memoryview) -> Verdict:
        return msgspec.msgpack.decode(content, type=Verdict)

    def _known(self, digest: bytes) -> Verdict | None:
        return self._verdicts.find(digest)

    def _keep(self, digest: bytes, verdict: Verdict) -> None:
        """Keep a verdict, but for that of a grammar whose trial was ended for the first time."""
        if verdict.ended and self._ended_once.find(digest) is None:
            self._ended_once.keep(digest, verdict)
        else:
            self._verdicts.keep(digest, verdict)
