"""The bound on a text's length, for the kinds of tokenizers that models have."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from engine_server.engine.input import text_length
from engine_server.engine.input.text_length import PART, least_tokens, token_span

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
TRAINING = [Path(__file__).read_text(), " " * 300]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(alphabet: list[str] = ALPHABET) -> Tokenizer:
    """A tokenizer as GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def composing() -> Tokenizer:
    """A tokenizer with Qwen's normalizer."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def incomplete() -> Tokenizer:
    """A tokenizer without tokens for some control characters, as SmolLM2's."""
    names = {byte: chr(0x100 + byte) for byte in range(0x21)}
    alphabet = [name for name in ALPHABET if name not in (names[4], names[6])]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A tokenizer as Llama 2's and Gemma's."""
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz", "th", "the", "▁▁", "▁▁▁▁"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", *BYTE_TOKENS, *words])}
    merges = [("t", "h"), ("th", "e"), ("▁", "▁"), ("▁▁", "▁▁")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


BOUNDED = [byte_level, composing, incomplete, byte_fallback]


@pytest.mark.parametrize("build", BOUNDED)
def test_no_text_has_fewer_tokens_than_the_bound(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    span = token_span(tokenizer)
    assert span is not None

    pieces = st.sampled_from(
        [" " * 50, "the", "def test_", "\x04", "\x06" * 9, "\u03b1\u0313\u0300\u0345", "\n"]
    )

    @given(st.lists(pieces | st.text(), max_size=20).map("".join))
    def check(text: str) -> None:
        text = text.encode(errors="ignore").decode()
        assert span.least_tokens(text) <= len(tokenizer.encode(text).ids)

    check()


@pytest.mark.parametrize("build", BOUNDED)
def test_long_text_has_a_bound_near_its_tokens(build: Callable[[], Tokenizer]) -> None:
    tokenizer = build()
    span = token_span(tokenizer)
    assert span is not None
    assert span.least_tokens("the " * 10_000) * 500 > 10_000


def test_characters_without_a_token_count_nothing() -> None:
    tokenizer = incomplete()
    span = token_span(tokenizer)
    assert span is not None
    assert span.dropped == "\x04\x06"
    assert tokenizer.encode("\x04" * 1000).ids == []
    assert span.least_tokens("\x04" * 1000) == 0


def with_normalizer(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


def with_pre_tokenizer(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, pre_tokenizers.ByteLevel()])
    return tokenizer


def with_added_token() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


UNBOUNDED = [
    lambda: Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
    lambda: Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0)),
    lambda: Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")),
    lambda: Tokenizer(models.BPE({"a": 0}, [])),
    lambda: with_normalizer(normalizers.Strip()),
    lambda: with_normalizer(normalizers.BertNormalizer()),
    lambda: with_normalizer(normalizers.Replace(Regex(" +"), " ")),
    lambda: with_normalizer(normalizers.Replace("  ", " ")),
    lambda: with_pre_tokenizer(pre_tokenizers.WhitespaceSplit()),
    lambda: with_pre_tokenizer(pre_tokenizers.Split(" ", "removed")),
    with_added_token,
]


@pytest.mark.parametrize("build", UNBOUNDED)
def test_tokenizer_that_may_drop_characters_has_no_bound(build: Callable[[], Tokenizer]) -> None:
    assert token_span(build()) is None


def word_piece() -> Tokenizer:
    """A tokenizer as BERT's, for which a word of over 100 letters is one token, and its beginning many."""
    vocabulary = {"[UNK]": 0, "a": 1, "##a": 2}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.mark.parametrize("build", [*BOUNDED, *UNBOUNDED, word_piece])
def test_no_part_of_a_text_has_more_tokens_than_are_allowed_for(
    build: Callable[[], Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = build()
    has_span = token_span(tokenizer) is not None
    monkeypatch.setattr(text_length, "PART", 400)
    monkeypatch.setattr(text_length, "LONG_BYTES", 0)
    pieces = st.sampled_from(
        [" " * 150, "the ", "a" * 130, "<mask>", "\u03b1\u0313\u0300\u0345" * 60, "\U0001f9a0" * 200]
    )

    @given(st.lists(pieces | st.text(), max_size=30).map("".join))
    def check(text: str) -> None:
        text = text.encode(errors="ignore").decode()
        assert least_tokens(tokenizer, text, len(tokenizer.encode(text).ids), has_span) is None

    check()


class CountingTokenizer:
    """A tokenizer that counts the characters that it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.model = tokenizer.model
        self.num_characters = 0
        self._tokenizer = tokenizer

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[Encoding]:
        self.num_characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("build", [byte_level, word_piece])
def test_few_characters_of_a_text_that_cannot_fit_are_tokenized(build: Callable[[], Tokenizer]) -> None:
    counting = CountingTokenizer(build())
    text = "\U0001f9a0 " * 1_000_000
    has_span = token_span(build()) is not None
    least = least_tokens(counting, text, 10_000, has_span)  # type: ignore[arg-type]
    assert least is not None and least > 10_000
    assert counting.num_characters == PART


def test_a_text_that_may_fit_is_not_tokenized_twice() -> None:
    counting = CountingTokenizer(byte_level())
    assert least_tokens(counting, "word " * 10_000, 10_000, True) is None  # type: ignore[arg-type]
    assert counting.num_characters == 0
