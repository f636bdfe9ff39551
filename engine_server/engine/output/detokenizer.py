"""From token ids to text as they come, and where a stop string ends it."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engine_server.requests.sampling_params import SamplingParams

CONTEXT = 6  # prompt tokens that the first new token's text may depend on


class Detokenizer:
    """One request's text. `text` is what may be shown: a possible beginning of a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._stop = params.stop_strings
        self._stream = DecodeStream(prompt_token_ids[-CONTEXT:], params.skip_special_tokens)
        self._undecoded: list[int] = []  # tokens since the last text: bytes of a character that isn't whole
        self._whole = ""
        self._held = 0  # characters at the end that may begin a stop string

    @property
    def text(self) -> str:
        return self._whole[: len(self._whole) - self._held]

    def append(self, token_ids: Sequence[int], finished: bool, count_from: int = 0) -> str | None:
        """Take new tokens; the stop string that ends the text, if one does.

        `finished`: no token follows, so nothing is held back. Stop strings don't count before there are
        `min_tokens` tokens, of which `count_from` came earlier.
        """
        for number, token_id in enumerate(token_ids, count_from + 1):
            piece = self._decode(token_id)
            if piece:
                self._whole += piece
                if number > self._params.min_tokens and (stop := self._find_stop(len(piece))):
                    self._held = 0
                    return stop
        if finished and self._undecoded:
            self._whole += self._tokenizer.decode(
                self._undecoded, skip_special_tokens=self._params.skip_special_tokens
            )
        self._held = 0 if finished else self._could_begin_stop()
        return None

    def _decode(self, token_id: int) -> str | None:
        self._undecoded.append(token_id)
        piece: str | None = self._stream.step(self._tokenizer, token_id)
        if piece:
            self._undecoded.clear()
        return piece

    def _find_stop(self, new: int) -> str | None:
        """Cut the text at the earliest stop string that the last `new` characters complete."""
        found = []
        for stop in self._stop:
            start = self._whole.find(stop, max(0, len(self._whole) - new - len(stop) + 1))
            if start >= 0:
                found.append((start, stop))
        if not found:
            return None
        start, stop = min(found)
        end = start + len(stop) if self._params.include_stop_str_in_output else start
        self._whole = self._whole[:end]
        return stop

    def _could_begin_stop(self) -> int:
        """The length of the longest end of the text that is the beginning of a stop string."""
        if self._params.include_stop_str_in_output:
            return 0
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._whole)), longest, -1):
                if self._whole.endswith(stop[:length]):
                    longest = length
                    break
        return longest
