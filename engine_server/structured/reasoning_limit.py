"""The limit of one completion's reasoning."""

import copy
from collections.abc import Sequence

from engine_server.requests.reasoning import Reasoning, ReasoningTracker


class ReasoningLimit:
    """A completion's position in its reasoning, which moves with its tokens and never back; a fork moves along drafts.

    It depends on the tokens alone, so that a resumed request has the same limit.
    """

    def __init__(self, reasoning: Reasoning, token_bytes: Sequence[bytes], num_prompt: int) -> None:
        """num_prompt: number of tokens before the output. The reasoning has a budget."""
        assert reasoning.budget is not None
        self._budget = reasoning.budget
        self._num_prompt = num_prompt
        self._tokens = ReasoningTracker(reasoning, token_bytes)
        self._num_read = num_prompt

    def fork(self) -> "ReasoningLimit":
        """Return a limit at the same position, whose moves don't change this one."""
        fork = copy.copy(self)
        fork._tokens = self._tokens.copy()
        return fork

    def read(self, token_ids: Sequence[int], end: int) -> int | None:
        """Move to the end of the first `end` tokens, of prompt and output; return the only token that may follow.

        None: any token may. Tokens are read once there are enough for the limit; until then some may be unknown.
        """
        if end - self._num_prompt < self._budget:
            return None
        self._tokens.count(token_ids[self._num_read : end])
        self._num_read = end
        spent = self._tokens.inside and self._tokens.total >= self._budget
        return self._tokens.next_of_end() if spent else None
