"""Text of one output as its tokens arrive, and the stop string that ends it."""

from collections import deque
from collections.abc import Sequence

from tokenizers import Tokenizer

from engine_server.engine.output.stop_matcher import StopAutomaton, StopMatch, StopMatcher
from engine_server.engine.output.token_decoder import TokenDecoder
from engine_server.requests.sampling_params import SamplingParams


class Detokenizer:
    """One completion's text. A possible beginning of a stop string is held back until following text rules it out."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        stops: StopAutomaton | None,
    ) -> None:
        """`stops`: the automaton of `params.stop_strings`, or None where there are none."""
        self._decoder = TokenDecoder(
            tokenizer, prompt_token_ids, params.skip_special_tokens, params.mark_token_ids or ()
        )
        self._matcher = StopMatcher(stops) if stops else None
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._finished = False
        # Text that was not taken yet, including text that is held back.
        self._pieces: deque[str] = deque()
        self._num_characters = 0

    def append(self, token_ids: Sequence[int], finished: bool) -> str | None:
        """Decode new tokens; return the stop string that ends the text, if any.

        finished: no token follows, so nothing is held back. Stop strings are matched in the text after the first
        `min_tokens` tokens. Text after a stop string is dropped.
        """
        for token_id in token_ids:
            self._num_tokens += 1
            piece = self._decoder.decode(token_id)
            if piece and (match := self._add(piece)):
                return match.stop
        if finished:
            self._finished = True
            match = self._add(self._decoder.flush())
            return match.stop if match else None
        return None

    def take(self) -> str:
        """Return the text that became visible since the last call."""
        held = 0 if self._finished or self._include_stop or not self._matcher else self._matcher.partial
        visible = self._num_characters - held
        if visible <= 0:
            return ""
        self._num_characters = held
        if not held:
            text = "".join(self._pieces)
            self._pieces.clear()
            return text
        taken = []
        while visible:
            piece = self._pieces.popleft()
            if len(piece) > visible:
                self._pieces.appendleft(piece[visible:])
                piece = piece[:visible]
            taken.append(piece)
            visible -= len(piece)
        return "".join(taken)

    def _add(self, piece: str) -> StopMatch | None:
        """Add text; cut it at the stop string that it completes, if there is one."""
        match = None
        if self._matcher is not None:
            if self._num_tokens > self._min_tokens:
                match = self._matcher.find(piece)
            else:
                self._matcher.feed(piece)
        self._pieces.append(piece)
        self._num_characters += len(piece)
        if match is not None:
            self._finished = True
            self._drop(len(piece) - match.end + (0 if self._include_stop else len(match.stop)))
        return match

    def _drop(self, count: int) -> None:
        """Remove the last `count` characters."""
        self._num_characters -= count
        while count:
            piece = self._pieces.pop()
            if len(piece) > count:
                self._pieces.append(piece[: len(piece) - count])
            count -= min(count, len(piece))
