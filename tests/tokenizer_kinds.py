"""Small tokenizers of each kind that models have."""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TRAINING = [Path(__file__).read_text(), " " * 300]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTERS = [chr(code) for code in range(0x21, 0x7F)]
WORDS = ["\u2581", "\n", *CHARACTERS, "\u2581a", "ab", "abc", "\u2581ab", "th", "the", "\u2581\u2581"]


def byte_level(*, prefix_space: bool = False, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """A tokenizer as GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def byte_fallback() -> models.BPE:
    vocabulary = {token: number for number, token in enumerate(["<unk>", *BYTE_TOKENS, *WORDS])}
    merges = [
        ("a", "b"), ("ab", "c"), ("\u2581", "a"), ("\u2581", "ab"), ("t", "h"), ("th", "e"), ("\u2581", "\u2581"),
    ]  # fmt: skip
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def metaspace(scheme: str) -> Tokenizer:
    """A tokenizer as conversions of Llama 2's and Mistral's have it."""
    tokenizer = Tokenizer(byte_fallback())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def prepending() -> Tokenizer:
    """A tokenizer as Llama 2's own."""
    tokenizer = Tokenizer(byte_fallback())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """A tokenizer as T5's and XLM-R's."""
    scores = [("<unk>", 0.0), *((word, -1.0 - len(word) % 3) for word in WORDS)]
    tokenizer = Tokenizer(models.Unigram(scores, 0))
    tokenizer.normalizer = normalizers.Precompiled(
        character_map({"\ufb01": "fi", "\u3000": " ", "\u2460": "1"})
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    """A tokenizer as BERT's."""
    pieces = ["[UNK]", *CHARACTERS, *("##" + one for one in CHARACTERS), "hello", "##ab", "the", "foo", "bar"]
    tokenizer = Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level with a prefix space": lambda: byte_level(prefix_space=True),
    "byte level, NFC": lambda: byte_level(normalizer=normalizers.NFC()),
    "byte level, NFKC": lambda: byte_level(normalizer=normalizers.NFKC()),
    "Metaspace first": lambda: metaspace("first"),
    "Metaspace always": lambda: metaspace("always"),
    "Metaspace never": lambda: metaspace("never"),
    "Prepend and Replace": prepending,
    "Unigram and Precompiled": unigram,
    "WordPiece": word_piece,
}
ADDED = [
    *(AddedToken(text, normalized=False, special=True) for text in ("<s>", "</s>", "<|", "|>", "<|EOS|>", "<|E")),
    *(AddedToken(text, normalized=False) for text in ("\n\n", "  ", "\u00e9", "abc")),
    AddedToken("<right>", normalized=False, rstrip=True),
    AddedToken("<left>", normalized=False, lstrip=True),
    AddedToken("foo bar", normalized=True),
    AddedToken("the ", normalized=True, lstrip=True),
]  # fmt: skip


def character_map(replacements: Mapping[str, str]) -> bytes:
    """Return replacements of characters as sentencepiece compiles them: a double array, and the texts that it names.

    Node n has the units from 256 n on, one for each byte that may follow; that of byte 0 is its value.
    """
    units, texts, bases = [0] * 256, b"", {b"": 0}
    for character, replacement in replacements.items():
        path = character.encode()
        for depth, byte in enumerate(path, 1):
            before, node = path[: depth - 1], path[:depth]
            if node not in bases:
                bases[node] = len(units)
                units += [0] * 256
                place = bases[before] ^ byte
                units[place] = (place ^ bases[node]) << 10 | byte
        units[bases[path[:-1]] ^ path[-1]] |= 1 << 8
        units[bases[path]] = len(texts) | 1 << 31
        texts += replacement.encode() + b"\0"
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts
