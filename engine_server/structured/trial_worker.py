"""A process that tries grammars, seen from the engine's process."""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from engine_server.contract.base.python_module import module_command
from engine_server.requests.messages import Vocabulary
from engine_server.structured.trial_line import PendingTrial
from engine_server.structured.trial_process import Trial, Verdict, read_frame, write_frame


class WorkerEndedError(RuntimeError):
    """The process ended before it had tried a grammar."""

    def __init__(self) -> None:
        super().__init__("the process that tries grammars has ended")


# Called once for each trial that was sent.
Finish = Callable[[PendingTrial, Verdict | WorkerEndedError], None]


class TrialWorker:
    """A process, and the trials that it has: each gets its verdict, or the error of the process's end.

    One thread sends; another calls `finish`.
    """

    def __init__(self, vocabulary: Vocabulary, finish: Finish) -> None:
        self._finish = finish
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        # By number; None once the process has ended. Guarded by the lock.
        self._trials: dict[int, PendingTrial] | None = {}
        descriptor = os.memfd_create("vocabulary")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.msgpack.encode(vocabulary))
            stream.flush()
            os.lseek(descriptor, 0, os.SEEK_SET)
            self.process = subprocess.Popen(
                module_command("engine_server.structured.trial_process", str(descriptor)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
            )
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, trial: PendingTrial) -> bool:
        """Send a grammar to the process. Return False if it has ended, in which case `finish` isn't called."""
        assert self.process.stdin is not None
        number = next(self._numbers)
        frame = msgspec.msgpack.encode(Trial(number, trial.params, list(trial.parts)))
        with self._lock:
            if self._trials is None or self.process.poll() is not None:
                return False
            self._trials[number] = trial
        try:
            write_frame(self.process.stdin, frame)
        except OSError:
            with self._lock:
                return (
                    self._trials is None or self._trials.pop(number, None) is None
                )  # finished with an error
        return True

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(OSError):  # what was not written is for a process that has ended
            self.process.stdin.close()
        self.process.wait()

    def _receive(self) -> None:
        """Pass on verdicts until the process and its forks have ended.

        A pipe to an ended process may take frames for a moment after its output has ended.
        """
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            while (frame := read_frame(stream)) is not None:
                verdict = msgspec.msgpack.decode(frame, type=Verdict)
                with self._lock:
                    assert self._trials is not None
                    trial = self._trials.pop(verdict.number)
                self._finish(trial, verdict)
        with self._lock:
            left, self._trials = self._trials or {}, None
        for trial in left.values():
            self._finish(trial, WorkerEndedError())
