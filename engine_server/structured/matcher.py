"""One completion's position in its grammar."""

import copy
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future

from llguidance import LLMatcher

from engine_server.structured.compiler import consume
from engine_server.structured.errors import GrammarError

# CPU time to move by one token; usually it takes a few microseconds, and a mask a few times as long.
TOKEN_SECONDS = 0.01
# Moves that may take longer: this process' own collection of garbage falls into some, while a grammar that is too
# ambiguous is slow from one token to the next.
SLOW_MOVES = 3


class Matcher:
    """A completion's position in its grammar, which moves with its tokens and never back; a fork moves along drafts.

    Until the tokens `starts_after` have been generated, or where `start_at` says so, the grammar has not started and
    every token is allowed.
    """

    def __init__(
        self,
        compiled: Future[LLMatcher],
        starts_after: Sequence[int] | None,
        eos_token_ids: Collection[int],
        num_prompt: int,
    ) -> None:
        """compiled: the grammar at its start, once it is compiled. num_prompt: number of tokens before the output."""
        self.error: str | None = None
        self._compiled = compiled
        self._starts_after = list(starts_after or ())
        self._eos_token_ids = eos_token_ids
        self._num_prompt = self._num_read = num_prompt
        # Index of the first token of the grammar; None: not yet.
        self._start = None if self._starts_after else num_prompt
        self._ended = False
        self._slow_moves = 0
        # None before the grammar has started.
        self._matcher: LLMatcher | None = None

    def fork(self) -> "Matcher":
        """Return a matcher at the same position, whose moves don't change this one."""
        fork = copy.copy(self)
        if self._matcher is not None:
            fork._matcher = self._matcher.deep_copy()
        return fork

    @property
    def ready(self) -> bool:
        """True once the grammar is compiled, or has failed to compile."""
        return self._compiled.done()

    @property
    def position(self) -> LLMatcher | None:
        """The library's matcher, if the grammar limits the next token."""
        limits = self._start is not None and not self._ended and self.error is None
        return self._matcher if limits else None

    @property
    def starts_after_tokens(self) -> bool:
        """True if the grammar starts after `starts_after`."""
        return bool(self._starts_after)

    def may_begin_with(self, token_id: int) -> bool:
        """Return True if a token may be the grammar's first, which must be compiled."""
        return self._compiled.exception() is None and bool(
            self._compiled.result().validate_tokens([token_id])
        )

    def start_at(self, index: int | None) -> None:
        """Set the index of the grammar's first token, of prompt and output; None: it has not started.

        A move of the start puts the matcher back to the grammar's beginning.
        """
        if index != self._start:
            self._start, self._matcher, self._ended = index, None, False
            self._num_read = self._num_read if index is None else index

    def read(self, token_ids: Sequence[int], end: int) -> None:
        """Move to the end of the first `end` tokens, of prompt and output. A failure is kept in `error`."""
        new = list(token_ids[self._num_read : end])
        self._num_read = end
        if self._start is None:
            new = self._find_start(token_ids, end - len(new), end)
        try:
            compiled = self._compiled.result()
            if self._start is not None:
                if self._matcher is None:
                    self._matcher = compiled.deep_copy()
                self._consume(self._matcher, new)
        except Exception as error:
            self.error = self.error or str(error)

    def check(self) -> None:
        """Keep the error of the latest mask, if there was one."""
        if self._matcher is not None and self._matcher.is_error():
            self.error = self.error or str(GrammarError(self._matcher.get_error()))

    def _find_start(self, token_ids: Sequence[int], first: int, end: int) -> list[int]:
        """Look for the tokens that start the grammar, the last one from `first` on; return the tokens after them."""
        marker = self._starts_after
        if not marker:
            return []
        for position in range(max(first + 1, self._num_prompt + len(marker)), end + 1):
            if list(token_ids[position - len(marker) : position]) == marker:
                self._start = position
                return list(token_ids[position:end])
        return []

    def _consume(self, matcher: LLMatcher, token_ids: list[int]) -> None:
        ends = [index for index, token_id in enumerate(token_ids) if token_id in self._eos_token_ids]
        if ends:
            self._ended, token_ids = True, token_ids[: ends[0]]
        if token_ids:
            started = time.thread_time()
            consume(matcher, token_ids)
            self._slow_moves += time.thread_time() - started > TOKEN_SECONDS * len(token_ids)
            if self._slow_moves > SLOW_MOVES:
                self.error = f"the grammar is too ambiguous: a token takes more than {TOKEN_SECONDS:g} s"
        self.check()
