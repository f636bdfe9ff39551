"""Hashes of blocks, by which requests find what others have computed."""

from collections.abc import Iterator
from concurrent.futures import Future
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_server import LoRARequest, PromptAdapterRequest, SamplingParams
from engine_server.core.adapters.adapter import Adapter, RequestAdapters
from engine_server.core.scheduling.block_hashes import STRETCH, KnownHashes, Stretch
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.span import Span
from engine_server.engine.input.prompt_fields import parse_prompt
from engine_server.requests.token_bytes import pack

NUM_TOKENS = 24
HIDDEN = 2


class Rows(NamedTuple):
    """Embeddings of one value."""

    start: int
    count: int
    value: float

    def span(self) -> Span:
        rows = torch.full((self.count, HIDDEN), self.value)
        embeds = parse_prompt({"prompt_embeds": rows}, HIDDEN).embeds
        assert embeds is not None
        return Span.of(self.start, rows, embeds.digest)


class Root(NamedTuple):
    """What decides over all blocks of a request."""

    cache_salt: str | None = None
    cache_scope: str | None = None
    rope_regime: int = 0
    lora: str | None = None


class Prompt(NamedTuple):
    token_ids: list[int]
    # Embeddings of the same value in every row: the gap before them, the number of rows, and the value.
    pieces: list[tuple[int, int, float]]
    root: Root = Root()
    # Embeddings at the very beginning are a prompt adapter's.
    adapted: bool = False

    @property
    def rows(self) -> list[Rows]:
        """The embeddings that fit into the prompt."""
        starts = accumulate(gap + count for gap, count, _ in self.pieces)
        rows = [
            Rows(end - count, count, value)
            for end, (_, count, value) in zip(starts, self.pieces, strict=True)
        ]
        return [one for one in rows if one.start + one.count <= NUM_TOKENS]

    def hashes(self, block_size: int) -> list[bytes]:
        spans = [rows.span() for rows in self.rows]
        virtual = spans.pop(0) if self.adapted and spans and spans[0].start == 0 else None
        request = GenerationRequest(
            "x", self.token_ids, NUM_TOKENS, SamplingParams(), 1, prompt_spans=spans,
            cache_salt=self.root.cache_salt, cache_scope=self.root.cache_scope, rope_regime=self.root.rope_regime,
            adapters=adapters(self.root.lora, virtual),
        )  # fmt: skip
        request.hash_blocks(NUM_TOKENS // block_size, KnownHashes(block_size, 0))
        return request.hashes

    def before(self, end: int) -> tuple[Root, list[int], list[Rows]]:
        """Return what K and V of the tokens before `end` depend on; of embeddings that go on after it, the whole."""
        return self.root, self.token_ids[:end], [rows for rows in self.rows if rows.start < end]


def adapters(lora: str | None, virtual: Span | None) -> RequestAdapters:
    reading: Future[Span] = Future()
    if virtual is not None:
        reading.set_result(virtual)
    return RequestAdapters(
        Adapter(LoRARequest("lora", 1, "/lora"), digest=lora) if lora else None,
        Adapter(PromptAdapterRequest("p", 1, "/p", virtual.length), reading) if virtual else None,
    )


def changed(prompt: Prompt) -> Iterator[Prompt]:
    """Yield prompts that differ in one thing."""
    yield prompt._replace(adapted=not prompt.adapted)
    for field, value in Root("other", "other", 2, "other")._asdict().items():
        yield prompt._replace(root=prompt.root._replace(**{field: value}))
    for index, token in enumerate(prompt.token_ids):
        yield prompt._replace(token_ids=replaced(prompt.token_ids, index, token + 1))
    for index, (gap, count, value) in enumerate(prompt.pieces):
        for piece in ((gap + 1, count, value), (gap, count + 1, value), (gap, count, value + 1)):
            yield prompt._replace(pieces=replaced(prompt.pieces, index, piece))
        yield prompt._replace(pieces=prompt.pieces[:index])


def replaced(values: list[Any], index: int, value: Any) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


names = st.sampled_from([None, "a", "b"])
roots = st.builds(Root, names, names, st.integers(0, 1), names)
tokens = st.lists(st.integers(0, 1), min_size=NUM_TOKENS, max_size=NUM_TOKENS)
pieces = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.sampled_from([0.0, 1.0])), max_size=3)
prompts = st.builds(Prompt, tokens, pieces, roots, st.booleans())


@given(prompts, prompts, st.integers(1, 7))
def test_two_blocks_have_one_hash_exactly_if_all_before_their_end_is_equal(
    prompt: Prompt, other: Prompt, block_size: int
) -> None:
    hashes = prompt.hashes(block_size)
    for second in (prompt, other, *changed(prompt)):
        for number, pair in enumerate(zip(hashes, second.hashes(block_size), strict=True), 1):
            end = number * block_size
            assert (pair[0] == pair[1]) == (prompt.before(end) == second.before(end))


def test_text_before_embeddings_shares_its_blocks_with_the_same_text() -> None:
    text = Prompt([3] * NUM_TOKENS, [])
    picture = Prompt([3] * NUM_TOKENS, [(9, 6, 1.0)])
    shared = [one == other for one, other in zip(text.hashes(4), picture.hashes(4), strict=True)]
    assert shared == [True, True, False, False, False, False]


def test_embeddings_of_another_dtype_have_another_digest() -> None:
    rows = torch.zeros(3, HIDDEN)
    digests = set()
    for embeds in (rows, rows.half(), rows.bfloat16(), rows.double(), torch.zeros(4, HIDDEN)):
        fields = parse_prompt({"prompt_embeds": embeds}, HIDDEN)
        assert fields.embeds is not None
        digests.add(fields.embeds.digest)
    assert len(digests) == 5


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=99), st.integers(1, 7))
def test_hash_of_a_block_is_that_of_its_tokens_behind_the_hash_before(
    token_ids: list[int], size: int
) -> None:
    count = len(token_ids) // size
    expected, parent = [], b"root"
    for start in range(0, count * size, size):
        block = b"".join(token.to_bytes(4, "little") for token in token_ids[start : start + size])
        parent = sha256(parent + block).digest()
        expected.append(parent)
    assert Stretch(b"root", pack(token_ids[: count * size])).hashes(size) == expected


def test_known_hashes_are_bounded_and_the_oldest_give_way() -> None:
    known = KnownHashes(1, 2 * STRETCH)
    stretches = [Stretch(bytes([number]), pack(range(STRETCH))) for number in range(3)]
    first, second, third = map(known.of, stretches)
    assert known.of(stretches[2]) is third
    assert known.of(stretches[1]) is second
    assert known.of(stretches[0]) == first
    assert known.of(stretches[0]) is not first
