"""Tokenization for a model that takes pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer as Backend

from engine_server.engine.input.marked_text import MarkedTextEncoder, encode
from engine_server.engine.input.media_marks import MediaMarks
from engine_server.engine.input.pictures import Pictures
from engine_server.engine.input.placeholders import KnownPicture, ProcessedPrompt, with_placeholders

# Replacement texts whose tokens are kept. Pictures of one size have the same one.
REPLACEMENTS = 256


class MediaInput:
    """The pictures of a model and the tokens in their places. Any thread may call it."""

    def __init__(self, backend: Backend, pictures: Pictures) -> None:
        """Raises ValueError for a tokenizer without the image token."""
        token_id = backend.token_to_id(pictures.image_token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {pictures.image_token}")
        self.pictures = pictures
        self.image_token_id = token_id
        self._marked = MarkedTextEncoder(backend)
        self._replacement = lru_cache(REPLACEMENTS)(lambda text: tuple(encode(backend, text).ids))

    def new_marks(self) -> MediaMarks:
        return MediaMarks(self.pictures.media_tokens)

    def with_image_tokens(self, rendered: str) -> str:
        """Return a text in which the image token is what the chat template wrote for each picture."""
        return rendered.replace(self.pictures.template_token, self.pictures.image_token)

    def encode_pieces(self, pieces: Sequence[str], add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text in pieces, of which those at odd places are plain text."""
        return self._marked.encode(pieces, add_special_tokens)

    def with_placeholders(
        self, token_ids: Sequence[int], pictures: Sequence[KnownPicture]
    ) -> ProcessedPrompt:
        """Replace the image tokens of a prompt by the tokens of its pictures. Raises InvalidRequestError."""
        return with_placeholders(token_ids, self.image_token_id, pictures, self._replacement)
