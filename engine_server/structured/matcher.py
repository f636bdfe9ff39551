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


class Matcher:
    """A completion's position in its grammar, which moves with its tokens and never back; a fork moves along drafts.

    Until the tokens `starts_after` have been generated, the grammar has not started and every token is allowed.
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
        self._started = not self._starts_after
        self._ended = False
        # None before the first `read`.
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
        limits = self._started and not self._ended and self.error is None
        return self._matcher if limits else None

    def read(self, token_ids: Sequence[int], end: int) -> None:
        """Move to the end of the first `end` tokens, of prompt and output. A failure is kept in `error`."""
        new = list(token_ids[self._num_read : end])
        self._num_read = end
        if not self._started:
            new = self._find_start(token_ids, end - len(new), end)
        try:
            self._consume(new)
        except Exception as error:
            self.error = self.error or str(error)

    def check(self) -> None:
        """Keep the error of the latest mask, if there was one."""
        if self._matcher is not None and self._matcher.is_error():
            self.error = self.error or str(GrammarError(self._matcher.get_error()))

    def _find_start(self, token_ids: Sequence[int], first: int, end: int) -> list[int]:
        """Look for the tokens that start the grammar, the last one from `first` on; return the tokens after them."""
        marker = self._starts_after
        for position in range(max(first + 1, self._num_prompt + len(marker)), end + 1):
            if list(token_ids[position - len(marker) : position]) == marker:
                self._started = True
                return list(token_ids[position:end])
        return []

    def _consume(self, token_ids: list[int]) -> None:
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
        ends = [index for index, token_id in enumerate(token_ids) if token_id in self._eos_token_ids]
        if ends and self._started:
            self._ended, token_ids = True, token_ids[: ends[0]]
        if token_ids:
            started = time.thread_time()
            consume(self._matcher, token_ids)
            if time.thread_time() - started > TOKEN_SECONDS * len(token_ids):
                self.error = f"the grammar is too ambiguous: a token takes more than {TOKEN_SECONDS:g} s"
        self.check()
