"""Tokenization in segments: the same tokens for every kind of tokenizer, however a text is cut, whatever is cached."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizer_kinds import ADDED, KINDS, byte_level
from tokenizers import AddedToken, Tokenizer, processors
from transformers import TokenizersBackend

from engine_server.config import ModelConfig
from engine_server.engine.input.added_tokens import AddedTokens
from engine_server.engine.input.processor import Processor
from engine_server.engine.input.segment_cache import SegmentCache, Sharers
from engine_server.engine.input.segments import SegmentedTokenizer, segmented
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.prompts import EncodedText, PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.telemetry.stats import PromptStats

# Of each kind.
NUM_TEXTS = 2_000
ATOMS = [
    *(token.content for token in ADDED),
    "foo", "bar", " ", "   ", "\n", "\t", "a", "b", "ab", "abc ", " abc", "Hello, world", "the", "<", "|", ">", "EOS|>",
    "<le", "\u00e9", "e\u0301", "\u0301", "\u65e5\u672c", "\U0001f389", "123", "\ufb01", "\u3000", "\u2460", "\x00",
    "\u2581",
]  # fmt: skip
# In bytes: so few that most segments give way before they come again.
LIMIT = 1 << 16
CHAT = [AddedToken(text, normalized=False, special=True) for text in ("<|im_start|>", "<|im_end|>")]
END = "<|im_end|>\n"
ALICE, BOB = Sharers("alice"), Sharers("bob")


def with_added(backend: Tokenizer, tokens: list[AddedToken]) -> TokenizersBackend:
    backend.add_tokens(tokens)
    return TokenizersBackend(tokenizer_object=backend)


def texts(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(NUM_TEXTS):
        yield "".join(rng.choices(ATOMS, k=rng.randint(1, 24)))


class Counting:
    """A tokenizer that records the texts that it is given."""

    def __init__(self, backend: Tokenizer) -> None:
        self.texts: list[str] = []
        self._backend = backend

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> object:
        self.texts += texts
        return self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def counting(limit: int) -> tuple[SegmentedTokenizer, list[str]]:
    """Return a tokenizer with a cache of `limit` bytes, and the list of the segments that it has tokenized."""
    backend = Counting(with_added(byte_level(), CHAT).backend_tokenizer)
    tokenizer: Any = backend
    return SegmentedTokenizer(tokenizer, AddedTokens(CHAT), "test", SegmentCache(limit)), backend.texts


def message(text: str) -> str:
    return f"<|im_start|>user\n{text * 100}{END}"


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_segments_are_those_of_the_whole_text(kind: str) -> None:
    tokenizer, cache = with_added(KINDS[kind](), ADDED), SegmentCache(LIMIT)
    assert segmented(tokenizer, kind, cache) is not None
    cut = SegmentedTokenizer(
        tokenizer.backend_tokenizer, AddedTokens(separate(ADDED)), kind, cache, least_segment=1
    )
    expected = {text: tokenizer(text, add_special_tokens=False).input_ids for text in texts(1)}
    for text, ids in expected.items():
        assert cut.encode(text, ALICE).ids == ids, repr(text)
    assert LIMIT * 0.9 < cache.used <= LIMIT
    again = list(expected)
    random.Random(2).shuffle(again)
    for text in again:
        assert cut.encode(text, ALICE).ids == expected[text], repr(text)


def separate(tokens: list[AddedToken]) -> list[AddedToken]:
    return [token for token in tokens if not token.normalized]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: with_added(byte_level(), [AddedToken("<mask>", single_word=True)]), "only between words"),
        (lambda: with_dropout(with_added(byte_level(), CHAT)), "random"),
        (lambda: splitting(with_added(byte_level(), CHAT)), "splits special tokens"),
        (lambda: deviating(with_added(byte_level(), CHAT)), "not those of its parts"),
        (lambda: with_added(byte_level(), nested(500)), "begins with too many others"),
    ],
)  # fmt: skip
def test_tokenizer_whose_texts_cannot_be_cut_is_not_cached(
    build: Callable[[], TokenizersBackend], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert segmented(build(), "test", SegmentCache(LIMIT)) is None
    assert reason in caplog.text


def with_dropout(tokenizer: TokenizersBackend) -> TokenizersBackend:
    tokenizer.backend_tokenizer.model.dropout = 0.5
    return tokenizer


def splitting(tokenizer: TokenizersBackend) -> TokenizersBackend:
    tokenizer.split_special_tokens = True
    return tokenizer


def nested(count: int) -> list[AddedToken]:
    return [AddedToken("x" * length, normalized=False) for length in range(1, count)]


def deviating(tokenizer: TokenizersBackend) -> TokenizersBackend:
    return Deviating(tokenizer_object=tokenizer.backend_tokenizer)


class Deviating(TokenizersBackend):
    """A tokenizer whose class changes what its file says."""

    def __call__(self, text: str, **options: Any) -> Any:
        return super().__call__(text.upper(), **options)


def test_next_turn_is_tokenized_from_its_new_message_on() -> None:
    tokenizer, tokenized = counting(1 << 20)
    first, second, third = message("one "), message("two "), message("three ")
    tokenizer.encode(first + second, ALICE)
    tokenized.clear()
    _, num_found = tokenizer.encode(first + second + third, ALICE)
    assert num_found == len(first + second)
    assert tokenized == [END + third.removesuffix(END)]


def test_changed_message_alone_is_tokenized_again() -> None:
    tokenizer, tokenized = counting(1 << 20)
    tokenizer.encode(message("one ") + message("two ") + message("three "), ALICE)
    tokenized.clear()
    tokenizer.encode(message("one ") + message("2 ") + message("three "), ALICE)
    assert tokenized == [END + message("2 ").removesuffix(END)]


@pytest.mark.parametrize("other", [BOB, Sharers("alice", "salt"), Sharers(None, "alice"), Sharers()])
def test_segments_are_not_found_by_other_sharers(other: Sharers) -> None:
    tokenizer, tokenized = counting(1 << 20)
    for sharers in (ALICE, other, ALICE, other):
        tokenizer.encode(message("secret "), sharers)
    assert tokenized == [message("secret ").removesuffix(END), END] * 2


def test_text_of_many_added_tokens_is_cut_to_few_segments() -> None:
    tokenizer, tokenized = counting(1 << 20)
    tokenizer.encode("<|im_start|>a" * 10_000, ALICE)
    assert len(tokenized) <= 2


def model_config(tokenizer_cache_bytes: int) -> ModelConfig:
    return ModelConfig(
        model="m", path="m", tokenizer="m", served_model_name=["m"], dtype="auto", max_model_len=1 << 20,
        vocab_size=1_000, eos_token_ids=[], seed=0, tokenizer_cache_bytes=tokenizer_cache_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("tokenizer_cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_of_the_tokenizer_are_added_as_without_a_cache(
    tokenizer_cache_bytes: int, special: bool
) -> None:
    backend = with_added(byte_level(), [*CHAT, AddedToken("<s>", special=True)]).backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    tokenizer = TokenizersBackend(tokenizer_object=backend)
    processor = Processor(model_config(tokenizer_cache_bytes), tokenizer)
    for text in [message("one "), message("one ") + message("two ")] * 2:
        expected = tokenizer(text, add_special_tokens=special).input_ids
        assert processor.encode(text, None, special, ALICE) == expected


def test_token_of_the_tokenizer_that_the_model_lacks_is_refused() -> None:
    processor = Processor(model_config(0), with_added(byte_level(), CHAT))
    prompt: PromptType = {"prompt_token_ids": EncodedText([1, 1_000])}
    with pytest.raises(InvalidRequestError, match="prompt has token 1000"):
        processor.process(prompt, SamplingParams())


def test_long_known_text_is_refused_as_an_unknown_one_is() -> None:
    processor = Processor(model_config(1 << 20), with_added(byte_level(), CHAT))
    text = message("one ") * 60
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="the prompt has"):
            processor.encode(text, 100, False, ALICE)


def test_known_part_of_texts_is_measured() -> None:
    processor = Processor(model_config(1 << 20), with_added(byte_level(), CHAT))
    text = message("one ")
    for _ in range(2):
        processor.encode(text, None, False, ALICE)
    processor.encode(text, None, False)
    stats = processor.times.take()
    assert (stats.num_characters, stats.num_characters_found) == (3 * len(text), len(text))
    assert len(stats.tokenize_seconds) == 3
    assert processor.times.take() == PromptStats()
