"""The process that tries grammars: `python -m engine_server.structured.trial_process DESCRIPTOR`.

Each grammar is translated and compiled in a fork of its own, with limits on time and memory: the library may take any
time for a small grammar, and its recursion may overflow the stack. A vocabulary is read from DESCRIPTOR.
"""

import os
import sys
import threading
from collections.abc import Sequence

import msgspec

from engine_server.forks.fork_server import ForkServer
from engine_server.forks.limits import Limits, ended_on_time
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
# Of a verdict, which has the grammar's text.
VERDICT_BYTES = 64 << 20
# Grammars that are tried at once; others wait.
MAX_FORKS = 4


class Trial(msgspec.Struct, array_like=True):
    """A grammar to try."""

    params: StructuredOutputsParams
    # Grammars of its parts, which are tried too if it can't be used.
    parts: list[StructuredOutputsParams] = []


class Verdict(msgspec.Struct, array_like=True):
    """The grammar as `Compiler.compile` takes it, or the reason why it can't be used."""

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


class Trials:
    """The trials of one vocabulary's grammars."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = Compiler(vocabulary)
        self._special = {
            vocabulary.tokens[token_id].decode(): token_id for token_id in vocabulary.special_token_ids
        }

    def run(self, content: bytes | memoryview) -> bytes:
        """Translate and compile a grammar, and its parts if it can't be used, within the limits for all together."""
        trial = msgspec.msgpack.decode(content, type=Trial)
        verdict = Verdict()

        def compile_grammar() -> None:
            try:
                verdict.text = self._compile(trial.params)
            except GrammarError as error:
                verdict.error = str(error)
                verdict.faults = self._faults(trial.parts)

        thread = threading.Thread(target=compile_grammar)
        start_with_stack(thread, TRIAL_STACK_BYTES)
        thread.join()
        if verdict.text is None and verdict.error is None:
            verdict.error = "the grammar can't be compiled"
        return msgspec.msgpack.encode(verdict)

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


def ended(status: int) -> bytes:
    """Return the verdict on a grammar whose trial did not end by itself."""
    limit = (
        f"it takes more than {SECONDS:g} s to compile"
        if ended_on_time(status)
        else f"it takes more than {BYTES >> 20} MiB of memory or nests too deeply"
    )
    return msgspec.msgpack.encode(Verdict(error=f"the grammar is too complex: {limit}", ended=True))


def main() -> None:
    """Serve trials until the parent closes standard input."""
    with os.fdopen(int(sys.argv[1]), "rb") as stream:
        vocabulary = msgspec.msgpack.decode(stream.read(), type=Vocabulary)
    limits = Limits(SECONDS, TRIAL_STACK_BYTES + BYTES, VERDICT_BYTES)
    ForkServer(Trials(vocabulary).run, ended, limits, MAX_FORKS).serve()


if __name__ == "__main__":
    main()
