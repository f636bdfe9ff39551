"""The least tokens of a long text, by which it is refused before all of it is tokenized.

Its length alone decides, or else its first parts. Lengths decide only for tokenizers that turn every character into
tokens. WordPiece makes one token of any long word, some normalizers and pre-tokenizers drop characters, and some added
tokens absorb the blanks beside them: their texts have no longest length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# In characters; shorter texts are tokenized quickly.
LONG_TEXT = 20_000
# Canonical composition makes one character of four at most: of U+03B1 U+0313 U+0300 U+0345, for instance.
COMPOSED = 4
# In UTF-8 bytes for each token that fits, and in all; nearly all texts that fit are shorter, and tokenized only once.
LONG_FOR_ITS_LIMIT = 8
LONG_BYTES = 1 << 21
# In characters.
PART = 1 << 16
# Tokens that cuts of its first and last word can add to a part of a text, where words have no limit of their own.
CUT_WORDS = 256
ASCII = range(128)
CONTINUATION_BYTES = range(0x80, 0xC0)


class TokenSpan(NamedTuple):
    """The part of a text that one token stands for."""

    # At most.
    num_characters: int
    # Characters that the vocabulary lacks and that get no token.
    dropped: str

    def least_tokens(self, text: str) -> int:
        """Return the number of tokens that `text` has at least."""
        length = len(text) - sum(text.count(character) for character in self.dropped)
        return length // self.num_characters


def least_tokens(tokenizer: Tokenizer, text: str, limit: int, has_span: bool) -> int | None:
    """Return a number of tokens above `limit` that `text` has at least; None if it may have fewer.

    has_span: the tokenizer has a `token_span`. Then all parts of a text add tokens; else the beginning of a text may
    change what follows, as a token that absorbs blanks does, so that only its prefixes are compared.
    """
    if len(text.encode(errors="replace")) <= min(LONG_FOR_ITS_LIMIT * limit, LONG_BYTES):
        return None
    # WordPiece makes one token of a longer word, but several of its parts.
    word = getattr(tokenizer.model, "max_input_chars_per_word", 0)
    allowance = max(CUT_WORDS, 2 * word)
    least, start, end = 0, 0, PART
    while start < len(text):
        (part,) = tokenizer.encode_batch_fast([text[start:end]], add_special_tokens=False)
        least = max(0, len(part) - allowance) + (least if has_span else 0)
        if least > limit:
            return least
        if end >= len(text):
            return None
        start, end = (end, end + PART) if has_span else (0, 2 * end)
    return None


def token_span(tokenizer: Tokenizer) -> TokenSpan | None:
    """Return the part of a text that one token stands for; None without a bound."""
    config: dict[str, Any] = json.loads(tokenizer.to_str())
    model = config["model"]
    vocabulary: Mapping[str, int] = model.get("vocab", {})
    added = config["added_tokens"]
    if model["type"] != "BPE" or not vocabulary or any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    parts = flatten(config["pre_tokenizer"], "pretokenizers")
    shrinkage = 1
    for part in flatten(config["normalizer"], "normalizers"):
        if part["type"] == "NFC":
            shrinkage = COMPOSED
        elif not keeps_length(part):
            return None
    names = byte_names(model, parts)
    if names is None or not all(keeps_characters(part) for part in parts):
        return None
    if any(names[byte] not in vocabulary for byte in CONTINUATION_BYTES):
        return None
    longest = max(len(token) for token in [*vocabulary, *(token["content"] for token in added)])
    dropped = "".join(chr(byte) for byte in ASCII if names[byte] not in vocabulary)
    return TokenSpan(shrinkage * longest, dropped)


def flatten(part: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """Return the parts of a sequence of normalizers or pre-tokenizers."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for member in part[members] for inner in flatten(member, members)]
    return [part]


def keeps_length(normalizer: Mapping[str, Any]) -> bool:
    """Return True for a normalizer that makes no text shorter."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return pattern is not None and len(pattern) <= len(normalizer["content"])
    return normalizer["type"] in ("Prepend", "ByteLevel")


def keeps_characters(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Return True for a pre-tokenizer that splits a text but drops none of it."""
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in ("ByteLevel", "Metaspace", "Digits", "Punctuation")


def byte_names(model: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> list[str] | None:
    """Return the tokens of the 256 bytes, to which every text can be reduced; None if there are none."""
    if model.get("byte_fallback"):
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        return names if all(name in model["vocab"] for name in names) else None
    if not any(part["type"] == "ByteLevel" for part in parts):
        return None
    # GPT-2's names: printable bytes stand for themselves, the others for the characters from U+0100 in order.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in range(256)]
