"""The process that tries grammars: `python -m engine_server.structured.trial_process DESCRIPTOR`.

Each grammar is translated and compiled in a fork of its own, with limits on time and memory: the library may take any
time for a small grammar, and its recursion may overflow the stack. A vocabulary is read from DESCRIPTOR, and frames
from standard input until its end; each gets a frame on standard output.
"""

import os
import resource
import selectors
import signal
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import Vocabulary
from engine_server.requests.structured_outputs import StructuredOutputsParams
from engine_server.structured.compiler import TRIAL_STACK_BYTES, Compiler, start_with_stack
from engine_server.structured.description import grammar_text
from engine_server.structured.errors import GrammarError

# CPU time to translate and compile a grammar.
SECONDS = 1.0
# Memory that this may take.
BYTES = 64 << 20
# Grammars that are tried at once; others wait.
MAX_FORKS = 4

LENGTH = struct.Struct("<I")


class Trial(msgspec.Struct, array_like=True):
    """A grammar to try."""

    number: int
    params: StructuredOutputsParams
    # Grammars of its parts, which are tried too if it can't be used.
    parts: list[StructuredOutputsParams] = []


class Verdict(msgspec.Struct, array_like=True):
    """The grammar as `Compiler.compile` takes it, or the reason why it can't be used."""

    number: int
    text: str | None = None
    error: str | None = None
    # The trial was ended from outside, at a limit or by a fault of the machine, instead of by its own result.
    ended: bool = False
    # The reasons why parts can't be used, by their index.
    faults: dict[int, str] = {}

    def grammar(self) -> str:
        """Return the grammar. Raises InvalidRequestError."""
        if self.text is None:
            raise InvalidRequestError(str(self.error), "structured_outputs")
        return self.text


class Fork(NamedTuple):
    """A running trial."""

    number: int
    process: int


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return a frame's content, or None at the stream's end."""
    head = read_bytes(stream, LENGTH.size)
    return read_bytes(stream, LENGTH.unpack(head)[0]) if head else None


def read_bytes(stream: IO[bytes], size: int) -> bytes | None:
    """Return the next bytes of a stream that may be unbuffered, or None if it ends before them."""
    parts = b""
    while len(parts) < size:
        part = stream.read(size - len(parts))
        if not part:
            return None
        parts += part
    return parts


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Write a frame."""
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


class Trials:
    """The forks that try grammars."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = Compiler(vocabulary)
        self._special = {
            vocabulary.tokens[token_id].decode(): token_id for token_id in vocabulary.special_token_ids
        }
        # Unbuffered, since the selector doesn't see what a buffer holds.
        self._input = os.fdopen(0, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._num_forks = 0

    def run(self) -> None:
        """Try grammars until the end of standard input."""
        self._selector.register(self._input, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, Fork):
                    self._finish(key.fd, key.data)
                elif (frame := read_frame(self._input)) is not None:
                    self._start(msgspec.msgpack.decode(frame, type=Trial))
                else:
                    return

    def _start(self, trial: Trial) -> None:
        ours, theirs = os.pipe()
        process = os.fork()
        if not process:
            verdict = self._try(trial)
            with os.fdopen(theirs, "wb") as stream:
                stream.write(msgspec.msgpack.encode(verdict))
            os._exit(0)
        os.close(theirs)
        self._selector.register(ours, selectors.EVENT_READ, Fork(trial.number, process))
        self._num_forks += 1
        if self._num_forks == MAX_FORKS:
            self._selector.unregister(self._input)

    def _finish(self, pipe: int, fork: Fork) -> None:
        """Pass on a fork's verdict; a fork that was killed leaves none."""
        self._selector.unregister(pipe)
        with os.fdopen(pipe, "rb") as stream:
            verdict = stream.read()
        _, status = os.waitpid(fork.process, 0)
        if not verdict:
            verdict = msgspec.msgpack.encode(Verdict(fork.number, error=reason(status), ended=True))
        write_frame(sys.stdout.buffer, verdict)
        if self._num_forks == MAX_FORKS:
            self._selector.register(self._input, selectors.EVENT_READ)
        self._num_forks -= 1

    def _try(self, trial: Trial) -> Verdict:
        """Translate and compile a grammar, and its parts if it can't be used, within the limits for all together."""
        verdict = Verdict(trial.number)

        def compile_grammar() -> None:
            try:
                verdict.text = self._compile(trial.params)
            except GrammarError as error:
                verdict.error = str(error)
                verdict.faults = self._faults(trial.parts)

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of a crash
        limit_memory(TRIAL_STACK_BYTES + BYTES)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # kills the process
        thread = threading.Thread(target=compile_grammar)
        start_with_stack(thread, TRIAL_STACK_BYTES)
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        if verdict.text is None and verdict.error is None:
            verdict.error = "the grammar can't be compiled"
        return verdict

    def _compile(self, params: StructuredOutputsParams) -> str:
        """Return a grammar as `Compiler.compile` takes it. Raises GrammarError for one that can't be used."""
        text = grammar_text(params, self._special)
        self._compiler.walk(self._compiler.compile(text))
        return text

    def _faults(self, parts: Sequence[StructuredOutputsParams]) -> dict[int, str]:
        """Return the errors of the parts that can't be used, by their index."""
        faults = {}
        for index, part in enumerate(parts):
            try:
                self._compile(part)
            except GrammarError as error:
                faults[index] = str(error)
        return faults


def limit_memory(more: int) -> None:
    """Limit this process's private memory to `more` bytes above its present size."""
    with Path("/proc/self/status").open() as status:
        (data,) = (int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = (data << 10) + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def reason(status: int) -> str:
    """Return the message for a grammar whose trial did not end by itself."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return f"the grammar is too complex: it takes more than {SECONDS:g} s to compile"
    return f"the grammar is too complex: it takes more than {BYTES >> 20} MiB of memory or nests too deeply"


def main() -> None:
    """Serve trials until the parent closes standard input."""
    with os.fdopen(int(sys.argv[1]), "rb") as stream:
        vocabulary = msgspec.msgpack.decode(stream.read(), type=Vocabulary)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Trials(vocabulary).run()


if __name__ == "__main__":
    main()
