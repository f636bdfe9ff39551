"""Text of one output as its tokens arrive, and the stop string that ends it."""

from collections import deque
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from engine_server.engine.output.stop_matcher import StopAutomaton, StopMatcher
from engine_server.engine.output.token_decoder import TokenDecoder
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.stop_scope import ScopedText, StopScope


class Detokenizer:
    """One completion's text. A possible beginning of a stop string is held back until following text rules it out.

    So is text of which a scope doesn't say yet whether stop strings are matched in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        stops: StopAutomaton | None,
        scope: StopScope | None = None,
    ) -> None:
        """stops: the automaton of `params.stop_strings`, or None where there are none. scope: None for all text."""
        self._decoder = TokenDecoder(
            tokenizer, prompt_token_ids, params.skip_special_tokens, params.mark_token_ids or ()
        )
        self._matcher = StopMatcher(stops) if stops else None
        self._scope = scope if stops else None
        self._stops = params.stop_strings
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._finished = False
        # Number of characters of the first `min_tokens` tokens that the scope holds back.
        self._num_early = 0
        # Text that was not taken yet, including a possible beginning of a stop string.
        self._pieces: deque[str] = deque()
        self._num_characters = 0

    @property
    def begins(self) -> bool:
        """True if the next token's text is decoded as that of a text's first one."""
        return self._decoder.begins

    def append(self, token_ids: Sequence[int], finished: bool) -> str | None:
        """Decode new tokens; return the stop string that ends the text, if any.

        finished: no token follows, so nothing is held back. Stop strings are matched in the text after the first
        `min_tokens` tokens. Text after a stop string is dropped.
        """
        for token_id in token_ids:
            self._num_tokens += 1
            piece = self._decoder.decode(token_id)
            if piece and (stop := self._add(piece)):
                return stop
        if finished:
            self._finished = True
            stop = self._add(self._decoder.flush())
            return stop or (self._add_scoped(self._scope.end()) if self._scope else None)
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of new tokens of an output without stop strings, for those who need no `take`."""
        return "".join(map(self._decoder.decode, token_ids))

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

    def _add(self, piece: str) -> str | None:
        """Add text; cut it at the stop string that it completes, which is returned, if there is one."""
        num_early = 0 if self._num_tokens > self._min_tokens else len(piece)
        if self._scope is None:
            return self._add_content(piece, num_early)
        self._num_early += num_early
        return self._add_scoped(self._scope.feed(piece))

    def _add_scoped(self, pieces: Iterable[ScopedText]) -> str | None:
        """Add text of which it is known whether stop strings are matched in it."""
        for piece in pieces:
            num_early = min(self._num_early, len(piece.text))
            self._num_early -= num_early
            if piece.kind == "content":
                stop = self._add_content(piece.text, num_early)
            else:
                is_late = num_early < len(piece.text)
                stop = self._add_other(piece, self._stop_of(piece) if is_late else None)
            if stop is not None:
                return stop
        return None

    def _add_content(self, text: str, num_early: int) -> str | None:
        """Add text in which stop strings are matched, but for its first characters."""
        self.keep(text)
        if self._matcher is None:
            return None
        self._matcher.feed(text[:num_early])
        match = self._matcher.find(text[num_early:] if num_early else text)
        if match is None:
            return None
        self._finished = True
        self._drop(len(text) - num_early - match.end + (0 if self._include_stop else len(match.stop)))
        return match.stop

    def _add_other(self, piece: ScopedText, stop: str | None) -> str | None:
        """Add text in which stop strings are not matched. stop: the one that ends the answer at a mark."""
        assert self._matcher is not None
        self._matcher.restart()
        self._finished = self._finished or stop is not None
        if stop is None or self._include_stop:
            self.keep(piece.text)
        return stop

    def _stop_of(self, piece: ScopedText) -> str | None:
        """Return the first stop string that is a mark or a part of it, but for white space around them."""
        if piece.kind != "mark":
            return None
        plain = (piece.text if piece.plain is None else piece.plain).strip()
        return next((stop for stop in self._stops if stop.strip() and stop.strip() in plain), None)

    def keep(self, text: str) -> None:
        """Add text to what `take` returns."""
        self._pieces.append(text)
        self._num_characters += len(text)

    def _drop(self, count: int) -> None:
        """Remove the last `count` characters."""
        self._num_characters -= count
        while count:
            piece = self._pieces.pop()
            if len(piece) > count:
                self._pieces.append(piece[: len(piece) - count])
            count -= min(count, len(piece))
