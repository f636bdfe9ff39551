"""The text and the bytes of each token, for log-probabilities."""

from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer

from engine_server.engine.output.token_decoder import UNFINISHED


class TokenTexts:
    """The texts of a vocabulary's tokens, each read once.

    Decoders may leave out the space that a text's first token begins with, so that a token has two texts.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, token_bytes: Sequence[bytes] = ()) -> None:
        """tokenizer: None: tokens have no text. token_bytes: what each adds to a text; empty if it is not known."""
        self._tokenizer = tokenizer
        self._bytes = token_bytes
        self._texts: dict[int, str] = {}
        self._first_texts: dict[int, str] = {}

    @cached_property
    def special(self) -> frozenset[int]:
        """The tokens that are left out of texts unless a request wants them."""
        if self._tokenizer is None:
            return frozenset()
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def text(self, token_id: int) -> str | None:
        """Return what a token adds to a text that has begun, empty for a part of a character; None without texts."""
        text = self._texts.get(token_id)
        if text is None and self._tokenizer is not None:
            text = self._texts[token_id] = self._read(token_id)
        return text

    def first(self, token_id: int) -> str | None:
        """Return the same of a token that a text begins with."""
        text = self._first_texts.get(token_id)
        if text is None and self._tokenizer is not None:
            text = self._first_texts[token_id] = self._decode(token_id)
        return text

    def part(self, token_id: int) -> bytes:
        """Return the bytes of a token that is a part of a character; empty for another, and if they are not known."""
        return self._known(token_id) if self.text(token_id) == "" else b""

    def _known(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def _read(self, token_id: int) -> str:
        known = self._known(token_id)
        if not known:
            return self._decode(token_id)
        try:
            return known.decode()
        except UnicodeDecodeError:
            return ""

    def _decode(self, token_id: int) -> str:
        """Decode a token alone."""
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return "" if UNFINISHED in text else text
