"""Incremental decoding of token ids to text."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engine_server.requests.marks import mark_character

# Number of preceding tokens that new tokens' text may depend on, such as by a stripped leading space.
CONTEXT = 6
# A character has up to four bytes, each of which may be a token.
CHARACTER_TOKENS = 4
# Maximum number of tokens without text that are decoded again with each new one; beyond it, their text is final.
MAX_PENDING = 32
# A decoder's output for bytes that are not a valid character.
UNFINISHED = "\ufffd"


class TokenDecoder:
    """A decoder of one output, token by token. Text of the prompt is never part of the result.

    A character that begins with the prompt's last bytes and ends with the output's first ones belongs to the output.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        mark_token_ids: Sequence[int] = (),
    ) -> None:
        """mark_token_ids: tokens that `mark_character` stands for, by their index."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._marks = {token_id: mark_character(index) for index, token_id in enumerate(mark_token_ids)}
        # Output tokens that have no text yet: bytes of an incomplete character.
        self._pending: list[int] = []
        self._context: list[int] = []
        # There is no text before the next token's.
        self.begins = True
        self._open(prompt_token_ids)

    @property
    def num_pending(self) -> int:
        """The number of tokens that have no text yet, all of which are decoded again with the next one."""
        return len(self._pending)

    def decode(self, token_id: int) -> str:
        """Return the text that a token completes, empty inside a character."""
        if token_id in self._marks:
            return self._restart_with(self._marks[token_id])
        self._pending.append(token_id)
        try:
            piece: str | None = self._stream.step(self._tokenizer, token_id)
        except Exception:  # the preceding text changed, as with byte fallback before an invalid byte
            return self._restart()
        if piece is None:
            return self._restart() if len(self._pending) > MAX_PENDING else ""
        if self._prompt_tail:
            piece = self._without_prompt(piece)
        self._context, self._pending = self._pending, []
        self.begins = False
        return piece

    def flush(self) -> str:
        """Return the text of the pending tokens at the end of the output."""
        pending, self._pending = self._pending, []
        return self._text(pending) if pending else ""

    def _open(self, context: Sequence[int]) -> None:
        """Start a stream after `context`, whose last tokens may be the beginning of a character."""
        self._prompt_tail = ""
        for tail in range(CHARACTER_TOKENS):
            end = len(context) - tail
            for length in range(CONTEXT, CONTEXT + CHARACTER_TOKENS):
                before = list(context[max(0, end - length) : max(0, end)])
                if not (text := self._text(before)).endswith(UNFINISHED):
                    self.begins = not text
                    self._stream = DecodeStream(before, self._skip_special_tokens)
                    self._context = before
                    self._feed(context[max(0, end) :])
                    return
        self._stream = DecodeStream([], self._skip_special_tokens)
        self._context = []
        self.begins = True

    def _feed(self, tail: Sequence[int]) -> None:
        """Feed the prompt's last tokens to the stream, and record their text."""
        if not tail:
            return
        shown = self._text(self._context)
        whole = self._text([*self._context, *tail])
        self._prompt_tail = whole.removeprefix(shown) if whole.startswith(shown) else self._text(tail)
        for token_id in tail:
            if self._stream.step(self._tokenizer, token_id):
                self._prompt_tail = ""

    def _without_prompt(self, piece: str) -> str:
        """Remove the text of the prompt's last tokens from the first piece."""
        tail, self._prompt_tail = self._prompt_tail, ""
        return piece[len(tail) :] if piece.startswith(tail) else piece.removeprefix(tail.rstrip(UNFINISHED))

    def _restart(self) -> str:
        """Decode the pending tokens after the last ones that had text, and continue with a new stream."""
        context, pending = self._context, self._pending
        shown = self._text(context)
        whole = self._text([*context, *pending])
        piece = whole[len(shown) :] if whole.startswith(shown) else self._text(pending)
        self._pending = []
        self._open([*context, *pending])
        return piece

    def _restart_with(self, mark: str) -> str:
        """Return the pending text and a mark's character, and continue with a new stream."""
        text = self.flush() + mark
        self._open(self._context)
        return text

    def _text(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=self._skip_special_tokens)
        return text
