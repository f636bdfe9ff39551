"""Tokens of texts of which some strings are plain text, although the tokenizer has tokens for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

# Tokenizers that add a space to the beginning of a text add it before this.
BEFORE = "\n"
# A text around which special tokens are found.
ANY = "a"


class MarkedTextEncoder:
    """Encodes texts in pieces, of which those at odd places are plain text. Any thread may call it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @cached_property
    def _plain(self) -> Backend:
        """A copy of the tokenizer without added tokens."""
        settings = json.loads(self._backend.to_str())
        return Backend.from_str(json.dumps({**settings, "added_tokens": [], "post_processor": None}))

    @cached_property
    def _special(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        text = encode(self._backend, ANY)
        whole = self._backend.post_process(text, add_special_tokens=True)
        begin = whole.special_tokens_mask.index(0)
        return whole.ids[:begin], whole.ids[begin + len(text) :]

    def encode(self, pieces: Sequence[str], add_special_tokens: bool) -> list[int]:
        begin, end = self._special if add_special_tokens else ([], [])
        token_ids = begin + encode(self._backend, pieces[0]).ids
        for place, piece in enumerate(pieces[1:], 1):
            token_ids += self._plain_text(piece) if place % 2 else encode_inside(self._backend, piece)
        return token_ids + end

    def _plain_text(self, piece: str) -> list[int]:
        token_ids = encode_inside(self._plain, piece)
        if self._backend.token_to_id(piece) not in token_ids:
            return token_ids
        # The token is a word of the vocabulary too.
        return [token_id for character in piece for token_id in encode_inside(self._plain, character)]


def encode_inside(backend: Backend, piece: str) -> list[int]:
    """Return the tokens of a piece that is not the beginning of its text."""
    before = encode(backend, BEFORE).ids
    token_ids: list[int] = encode(backend, BEFORE + piece).ids
    if token_ids[: len(before)] != before:  # a token has the end of the one and the beginning of the other
        token_ids = encode(backend, piece).ids
        return token_ids
    return token_ids[len(before) :]


def encode(backend: Backend, text: str) -> Encoding:
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return encoding
