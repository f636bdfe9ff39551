"""One completion's position in its reasoning: its limit, and where the grammar of the answer begins."""

import copy
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from engine_server.requests.reasoning import Reasoning, ReasoningTracker


class ReasoningPosition:
    """A completion's position in its reasoning, which moves with its tokens and never back; a fork moves along drafts.

    It depends on the tokens alone, so that a resumed request has the same.
    """

    def __init__(
        self,
        reasoning: Reasoning,
        token_bytes: Sequence[bytes],
        num_prompt: int,
        may_begin_with: Callable[[int], bool] | None = None,
        in_grammar: bool = False,
    ) -> None:
        """num_prompt: number of tokens before the output.

        may_begin_with: returns True if a token may be the first of the grammar that begins where the reasoning ends;
        None: there is none. The grammar is compiled before the first `read`.

        in_grammar: the reasoning is a part of a grammar.
        """
        self._reasoning = reasoning
        self._token_bytes = token_bytes
        self._num_prompt = self._num_read = num_prompt
        self._may_begin_with = may_begin_with
        self._in_grammar = in_grammar and reasoning.end[0].exact
        # None before the first `read`.
        self._tracker: ReasoningTracker | None = None
        # Tokens that begin both a call and the grammar.
        self._calls: frozenset[int] = frozenset()
        # The output so far is white space at most, so that reasoning may begin instead of the grammar.
        self._undecided = may_begin_with is not None and not reasoning.inside and bool(reasoning.start)
        # Index of the first token of the grammar; None within the reasoning before it.
        self.grammar_start = None if reasoning.inside else num_prompt

    def fork(self) -> Self:
        """Return a position at the same place, whose moves don't change this one."""
        fork = copy.copy(self)
        fork._tracker = self._tracker and self._tracker.copy()
        return fork

    @property
    def gates(self) -> bool:
        """True if the grammar begins where the reasoning ends."""
        return self._may_begin_with is not None

    @property
    def openings(self) -> list[int]:
        """The tokens that may begin the reasoning instead of the grammar's next token."""
        return [mark.token_ids[0] for mark in self._reasoning.start] if self._undecided else []

    @property
    def closing(self) -> int | None:
        """The token that follows where the output would end, if it must not end there: within its reasoning."""
        if self._in_grammar:
            must_go_on = self._reasoning.inside if self._tracker is None else self._tracker.inside
        else:
            must_go_on = self.gates and self.grammar_start is None
        return self._reasoning.end[0].token_ids[0] if must_go_on else None

    @property
    def _reads_all(self) -> bool:
        """True if more than the limit depends on the tokens."""
        return self.gates or self._in_grammar

    def read(self, token_ids: Sequence[int], end: int) -> int | None:
        """Move to the end of the first `end` tokens, of prompt and output; return the only token that may follow.

        None: any token may. Without a grammar tokens are read once there are enough for the limit; until then some may
        be unknown.
        """
        budget = self._reasoning.budget
        if not self._reads_all and (budget is None or end - self._num_prompt < budget):
            return None
        tracker = self._tracker = self._tracker or self._new_tracker()
        for index in range(self._num_read, end):
            was_inside = tracker.inside
            tracker.read(token_ids[index])
            if self.gates:
                self._find_grammar(token_ids[index], index, was_inside, tracker.inside)
        self._num_read = max(self._num_read, end)
        spent = budget is not None and tracker.inside and tracker.total >= budget
        return tracker.next_of_end() if spent else None

    def _new_tracker(self) -> ReasoningTracker:
        """Return a tracker at the start, for which a call ends the reasoning only if the grammar begins with it."""
        reasoning = self._reasoning
        if self._may_begin_with is not None:
            calls = [mark for mark in reasoning.calls if self._may_begin_with(mark.token_ids[0])]
            # The grammar sees to it that a tool is named.
            reasoning = msgspec.structs.replace(reasoning, calls=calls, called=None)
        self._calls = frozenset(mark.token_ids[0] for mark in reasoning.calls)
        return ReasoningTracker(reasoning, self._token_bytes)

    def _find_grammar(self, token_id: int, index: int, was_inside: bool, is_inside: bool) -> None:
        """Take a token into account, before which and after which the output is within its reasoning or not."""
        if self._undecided:
            self._undecided = not is_inside and not self._token_bytes[token_id].strip()
            if is_inside:
                self.grammar_start = None
        elif self.grammar_start is None and was_inside and not is_inside:
            self.grammar_start = index if token_id in self._calls else index + 1
