"""Trials of grammars before their requests are queued."""

import hashlib
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from engine_server.requests.messages import Vocabulary
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.trial_process import Trial, Verdict, read_frame, write_frame

# Maximum number of grammars whose verdicts are kept.
MAX_VERDICTS = 1024

Process = subprocess.Popen[bytes]


class GrammarTrials:
    """Trials of grammars in a process that starts with the first one. Methods may be called by any thread.

    A grammar that passes compiles within the same limits of time and memory anywhere else.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        # By a hash of the grammar's description.
        self._verdicts: OrderedDict[bytes, Future[Verdict]] = OrderedDict()
        # Writes may block until the process has room.
        self._writer = ThreadPoolExecutor(1, "grammar trials")
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Verdict]] = {}
        self._process: Process | None = None

    def start(self, params: StructuredOutputsParams) -> Future[Verdict]:
        """Return a grammar's verdict, once it has been tried."""
        description = msgspec.structs.replace(params, starts_after=None)
        key = hashlib.sha256(msgspec.msgpack.encode(description)).digest()
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is None or (verdict.done() and verdict.exception()):
                verdict = self._verdicts[key] = Future()
                verdict.set_running_or_notify_cancel()  # several requests share it, so none may cancel it
                self._writer.submit(self._send, verdict, description)
            self._verdicts.move_to_end(key)
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _send(self, verdict: Future[Verdict], params: StructuredOutputsParams) -> None:
        """Send a grammar to the process, and start the process if there is none."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start_process()
            assert self._process.stdin is not None
            number = next(self._numbers)
            self._pending[number] = verdict
            write_frame(self._process.stdin, msgspec.msgpack.encode(Trial(number, params)))
        except Exception as error:
            verdict.set_exception(error)

    def _start_process(self) -> Process:
        descriptor = os.memfd_create("vocabulary")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.msgpack.encode(self._vocabulary))
            stream.flush()
            os.lseek(descriptor, 0, os.SEEK_SET)
            process = subprocess.Popen(
                [sys.executable, "-m", "engine_server.structured.trial_process", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
            )
        weakref.finalize(self, end, process)
        threading.Thread(target=receive, args=(process, self._pending), daemon=True).start()
        return process


def receive(process: Process, pending: dict[int, Future[Verdict]]) -> None:
    """Pass on a process's verdicts until it ends."""
    assert process.stdout is not None
    while (frame := read_frame(process.stdout)) is not None:
        verdict = msgspec.msgpack.decode(frame, type=Verdict)
        pending.pop(verdict.number).set_result(verdict)
    while pending:
        pending.popitem()[1].set_exception(RuntimeError("the process that tries grammars has ended"))


def end(process: Process) -> None:
    """End a process."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
