"""The bound on a text's length, for the kinds of tokenizers that models have."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine_server.engine.input.text_length import token_span

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


@pytest.mark.parametrize(
    "build",
    [
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
    ],
)
def test_tokenizer_that_may_drop_characters_has_no_bound(build: Callable[[], Tokenizer]) -> None:
    assert token_span(build()) is None
