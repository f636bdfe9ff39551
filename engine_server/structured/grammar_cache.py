"""Compiled grammars by their text."""

import queue
import threading
from collections import Counter, OrderedDict
from concurrent.futures import Future

from llguidance import LLMatcher

from engine_server.requests.messages import Vocabulary
from engine_server.structured.compiler import STACK_BYTES, Compiler, start_with_stack

# Maximum number of compiled grammars that are kept; each may take as much memory as a trial allows.
MAX_GRAMMARS = 64
# Requests that share a compiled grammar, whose lexer keeps the states of all of them.
MAX_USES = 256


class GrammarCache:
    """Grammars compiled in a thread, the most recently used of which are kept. Methods are called by one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = Compiler(vocabulary)
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        # Number of requests that got each of them.
        self._uses: Counter[str] = Counter()
        self._queue: queue.SimpleQueue[tuple[str, Future[LLMatcher]]] = queue.SimpleQueue()
        thread = threading.Thread(target=self._compile_all, name="grammars", daemon=True)
        start_with_stack(thread, STACK_BYTES)

    def get(self, grammar: str) -> Future[LLMatcher]:
        """Return a grammar's matcher at its start, of which each completion takes a copy."""
        if self._uses[grammar] == MAX_USES:
            self.discard(grammar)
        self._uses[grammar] += 1
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = Future()
            self._queue.put((grammar, compiled))
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > MAX_GRAMMARS:
            self.discard(next(iter(self._compiled)))
        return compiled

    def discard(self, grammar: str) -> None:
        """Have a grammar compiled anew for its next request, since a request with it failed or many have used it.

        All copies of a compiled grammar share the states of its lexer, of which a limited number is kept: once they are
        used up, each copy fails.
        """
        self._compiled.pop(grammar, None)
        del self._uses[grammar]

    def _compile_all(self) -> None:
        while True:
            grammar, compiled = self._queue.get()
            try:
                compiled.set_result(self._compiler.compile(grammar))
            except Exception as error:
                compiled.set_exception(error)
