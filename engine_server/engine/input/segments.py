"""Tokenization of texts in segments, whose tokens are found when they return, as in the next turn of a conversation.

A text is cut before added tokens, such as those around messages. Its tokens are those of its parts, in order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from engine_server.engine.input.added_tokens import AddedTokens
from engine_server.engine.input.segment_cache import SegmentCache, SegmentKey, Sharers, owner_of
from engine_server.requests.prompts import EncodedText
from engine_server.requests.token_bytes import pack, unpack

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# In characters. A shorter segment is hardly slower to tokenize than to find, and takes more memory than its text.
LEAST_SEGMENT = 128
# Texts beside added tokens with which a start tests that the tokens of parts are those of the whole.
PROBES = "", "a", " a ", "\n", "  two words\n\n", "\u00e9e\u0301 \u65e5\u672c \U0001f389 1234"
# Added tokens with which it does.
NUM_PROBED = 16


class Encoded(NamedTuple):
    """The tokens of a text."""

    ids: EncodedText
    # Number of its characters whose tokens were known.
    num_found: int


class SegmentedTokenizer:
    """A tokenizer that remembers the tokens of segments. It adds no special tokens."""

    def __init__(
        self,
        backend: Tokenizer,
        added: AddedTokens,
        name: str,
        cache: SegmentCache,
        least_segment: int = LEAST_SEGMENT,
    ) -> None:
        """name: tells its tokens from those of other tokenizers in the cache. least_segment: in characters."""
        self._backend = backend
        self._added = added
        self._name = name
        self._cache = cache
        self._least_segment = least_segment

    def encode(self, text: str, sharers: Sharers) -> Encoded:
        """Tokenize a text. Any thread may call this; others run while it tokenizes."""
        owner = owner_of(self._name, sharers)
        ids, num_found = EncodedText(), 0
        for segment in self._segments(text):
            key = SegmentKey(owner, segment)
            found = self._cache.find(key)
            if found is None:
                (encoding,) = self._backend.encode_batch_fast([segment], add_special_tokens=False)
                made = encoding.ids
                self._cache.keep(key, pack(made))
                ids += made
            else:
                num_found += len(segment)
                ids += unpack(found)
        return Encoded(ids, num_found)

    def _segments(self, text: str) -> Iterator[str]:
        for start, end in pairwise((0, *self._added.cuts(text, self._least_segment), len(text))):
            yield text[start:end]


def segmented(
    tokenizer: PreTrainedTokenizerBase, name: str, cache: SegmentCache
) -> SegmentedTokenizer | None:
    """Return a tokenizer that remembers segments in `cache`; None, and log why, for one whose texts can't be cut."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    tokens = [token for token in backend.get_added_tokens_decoder().values() if not token.normalized]
    try:
        added = AddedTokens(tokens)
    except RecursionError:
        reason: str | None = "an added token begins with too many others"
    else:
        reason = obstacle(tokenizer, added, tokens)
    if reason is None:
        return SegmentedTokenizer(backend, added, name, cache)
    logger.info("the tokens of texts are not cached: %s", reason)
    return None


def obstacle(tokenizer: Any, added: AddedTokens, tokens: list[AddedToken]) -> str | None:
    """Return why a tokenizer's texts can't be cut before added tokens; None if they can be."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    if getattr(backend.model, "dropout", None):
        return "the tokenizer's merges are random"
    if backend.encode_special_tokens or getattr(tokenizer, "split_special_tokens", False):
        return "the tokenizer splits special tokens"
    if any(token.single_word for token in backend.get_added_tokens_decoder().values()):
        return "an added token is one only between words"
    parts = SegmentedTokenizer(backend, added, "", SegmentCache(0), least_segment=1)
    probed = tokens[:: len(tokens) // NUM_PROBED + 1]
    for text in ["".join(probe + token.content for token in probed) + probe for probe in PROBES]:
        if parts.encode(text, Sharers()).ids != tokenizer(text, add_special_tokens=False).input_ids:
            return f"the tokens of {text!r} are not those of its parts"
    return None
