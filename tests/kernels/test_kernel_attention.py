"""Attention over the paged cache, compared with an explicit softmax in float32."""

from math import ceil
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import FLOAT8, quantised
from engine_server.modeling.cache.spec import spec_of
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window
from engine_server.modeling.kernels.attention import decode, prefill
from engine_server.modeling.kernels.work_list import CHUNK, plan_work, spare_chunks

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # padding queries of a tile see no key

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# Tokens in the step, and in the cache; the last entry is padding.
RAGGED = [(1, 40), (1, 1), (1, 140), (5, 5), (36, 60), (1, 0)]


class Heads(NamedTuple):
    query: int = 2
    kv: int = 1
    key_dim: int = 64
    value_dim: int = 64


class Case(NamedTuple):
    heads: Heads = Heads()
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    # The cache is in float8.
    float8: bool = False
    window: Window | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    causal: bool = True


CASES = {
    "grouped": Case(Heads(6, 2)),
    "multi-head": Case(Heads(2, 2), block_size=32),
    "multi-query": Case(Heads(7, 1)),
    "more query heads than rows": Case(Heads(17, 1)),
    "80 dims": Case(Heads(2, 1, 80, 80)),
    "96 dims": Case(Heads(2, 1, 96, 96), block_size=48),
    "128 dims": Case(Heads(2, 1, 128, 128)),
    "256 dims": Case(Heads(2, 1, 256, 256), window=Window(37)),
    "latent": Case(Heads(2, 2, 192, 128)),
    "small heads": Case(Heads(2, 1, 8, 8)),
    "window": Case(Heads(1, 1), window=Window(20)),
    "chunks": Case(Heads(1, 1), window=Window(20, chunked=True)),
    "window of one": Case(window=Window(1)),
    "softcap": Case(softcap=3.0),
    "sinks": Case(sinks=True),
    "alibi": Case(Heads(4, 2), alibi=True),
    "all at once": Case(window=Window(50), softcap=3.0, sinks=True, alibi=True),
    "not causal": Case(causal=False),
    "not causal, window": Case(causal=False, window=Window(20)),
    "not causal, alibi": Case(causal=False, alibi=True),
    "float16": Case(dtype=torch.float16),
    "bfloat16": Case(Heads(2, 1, 128, 128), dtype=torch.bfloat16, sinks=True),
    "float8 cache": Case(Heads(6, 2), float8=True),
    "float8 cache, all at once": Case(
        Heads(2, 2, 80, 48), 16, torch.bfloat16, True, window=Window(50), softcap=3.0, sinks=True, alibi=True
    ),
}


LARGE = [(1, 8192), (1, 3001), (700, 700), (512, 4096), (1, 33), (1, 0)]
LARGE_CASES = {
    "bfloat16": Case(Heads(8, 2, 128, 128), dtype=torch.bfloat16),
    "float16": Case(Heads(8, 1, 128, 128), block_size=32, dtype=torch.float16, window=Window(1000)),
    "float32": Case(Heads(4, 2, 64, 64)),
    "256 dims": Case(Heads(4, 2, 256, 256), dtype=torch.bfloat16, softcap=30.0),
    "latent": Case(Heads(2, 2, 192, 128), dtype=torch.bfloat16),
    "float8 cache": Case(Heads(8, 2, 128, 128), dtype=torch.bfloat16, float8=True, sinks=True),
}


@pytest.mark.parametrize("case", LARGE_CASES.values(), ids=LARGE_CASES)
def test_attention_kernel_equals_torch_for_long_contexts(device: torch.device, case: Case) -> None:
    if device.type == "cpu":
        pytest.skip("the interpreter would take minutes")
    check(device, case, LARGE, spares=(1, 8, 64))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_kernel_equals_torch(device: torch.device, case: Case) -> None:
    check(device, case, RAGGED, spares=(1, 4))


def windows(largest: int) -> st.SearchStrategy[Window | None]:
    return st.none() | st.builds(Window, st.integers(1, largest), st.booleans())


SEQUENCES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=4)


@settings(max_examples=4, derandomize=True)  # Triton's interpreter is slow
@given(sequences=SEQUENCES, spare=st.sampled_from([1, 8]), window=windows(50))
def test_attention_kernel_equals_torch_for_any_mix_of_sequences(
    device: torch.device, sequences: list[tuple[int, int]], spare: int, window: Window | None
) -> None:
    ragged = [(tokens, tokens + cached) for tokens, cached in sequences]
    check(device, Case(Heads(2, 1), window=window), ragged, spares=(spare,))


LENGTH = 70


@settings(max_examples=4, derandomize=True)  # Triton's interpreter is slow
@given(
    cuts=st.sets(st.integers(1, LENGTH - 1), max_size=3),
    neighbours=SEQUENCES,
    window=windows(50),
    causal=st.booleans(),
)
def test_invariant_attention_is_bitwise_independent_of_batch_composition(
    device: torch.device,
    cuts: set[int],
    neighbours: list[tuple[int, int]],
    window: Window | None,
    causal: bool,
) -> None:
    """A sequence runs whole, in chunks with others, and with its last token alone, as in decode."""
    torch.manual_seed(0)
    ends = sorted({*cuts, LENGTH - 1, LENGTH}) if causal else [LENGTH]
    contexts = [LENGTH, *(tokens + cached for tokens, cached in neighbours)]
    blocks = torch.arange(len(contexts) * 7, dtype=torch.int32, device=device).view(-1, 7)
    pages = [Pages(torch.randn(blocks.numel(), 16, 1, 64, device=device), None) for _ in range(2)]
    queries = torch.randn(LENGTH, 3, 64, device=device)
    window = window and window._replace(chunked=causal and window.chunked)
    scoring = Scoring(0.125, window, softcap=5.0, causal=causal)

    def attend(first: int, end: int, others: list[tuple[int, int]]) -> Tensor:
        lengths = [*(tokens for tokens, _ in others), end - first]
        query = torch.cat([torch.randn(sum(lengths[:-1]), 3, 64, device=device), queries[first:end]])
        rows = [
            [row + 1, sum(lengths[:row]), tokens, tokens + cached]
            for row, (tokens, cached) in enumerate(others)
        ]
        rows.append([0, len(query) - end + first, end - first, end])
        sequences = torch.tensor(rows, dtype=torch.int32, device=device)
        out = torch.full_like(query, torch.nan)
        prefill(out, query, *pages, blocks, sequences, scoring, invariant=True)
        return out[len(query) - end + first :]

    whole = attend(0, LENGTH, [])
    first = 0
    for end in ends:
        assert torch.equal(attend(first, end, neighbours), whole[first:end])
        first = end


def decodes_of(contexts: list[int], device: torch.device) -> Tensor:
    """Return the argument `sequences` of `decode`, with one token each in the step."""
    rows = [[row, row, 1, context] for row, context in enumerate(contexts)]
    return torch.tensor(rows, dtype=torch.int32, device=device)


CONTEXTS = st.lists(st.integers(0, 300) | st.integers(0, 200_000), min_size=1, max_size=40)


@settings(max_examples=40, derandomize=True)  # Triton's interpreter is slow
@given(contexts=CONTEXTS, spare=st.integers(1, 60), window=windows(5000))
def test_work_list_cuts_each_visible_key_into_exactly_one_chunk_of_one_size(
    device: torch.device, contexts: list[int], spare: int, window: Window | None
) -> None:
    work = plan_work(decodes_of(contexts, device), window, 3, spare)
    items, rows = work.items.tolist(), work.rows.tolist()
    used = [item for item in items if item[0] >= 0]
    assert len(items) == len(contexts) + spare
    assert items[: len(used)] == used
    visible = [min(context, window.seen(context - 1) if window else context) for context in contexts]
    size = max(CHUNK, ceil(ceil(sum(visible) / spare) / CHUNK) * CHUNK)
    taken = []
    for sequence, context in enumerate(contexts):
        chunks = [item[1:3] for item in used if item[0] == sequence]
        starts = range(context - visible[sequence], context, size) or [context]
        assert chunks == [[start, min(start + size, context)] for start in starts]
        own = [item[3] for item in used if item[0] == sequence]
        first, count = rows[sequence]
        assert own == (list(range(first, first + count)) if len(chunks) > 1 else [-1])
        assert count == (len(chunks) if len(chunks) > 1 else 0)
        taken += own if count else []
    assert taken == list(range(len(taken)))
    assert len(taken) <= work.num_rows
    assert work.finished.tolist() == [[0] * 3] * len(contexts)


def test_work_list_of_a_captured_size_shares_an_outlier_among_many_programs(device: torch.device) -> None:
    """A captured launch has one grid and one buffer: only the staged content changes."""
    spare = spare_chunks(kv_heads=8, processors=132)
    staged = decodes_of([1000] * 255 + [0], device)
    before = plan_work(staged, None, 8, spare)
    staged[7, 3] = 131_072
    outlier = plan_work(staged, None, 8, spare)
    assert before.items.shape == outlier.items.shape
    assert before.num_rows == outlier.num_rows
    assert (before.items[:, 0] == 7).sum() == 1
    chunks = outlier.items[outlier.items[:, 0] == 7]
    largest = int((chunks[:, 2] - chunks[:, 1]).max())
    total = 254 * 1000 + 131_072
    assert len(chunks) == outlier.rows[7, 1] == -(-131_072 // largest) > 10
    assert largest - CHUNK < -(-total // spare) <= largest
    assert (outlier.items[:, 0] >= 0).sum() == 255 + len(chunks)


def test_attention_kernel_equals_torch_for_an_outlier_among_short_contexts(device: torch.device) -> None:
    """A long context is cut into many chunks and joined; the others have one chunk each."""
    ragged = [(1, 5), (1, 1900), (1, 0), (1, 130), (1, 64)]
    check(device, Case(Heads(4, 2), sinks=True), ragged, spares=(1, 17))
    work = plan_work(decodes_of([context for _, context in ragged], device), None, 2, 17)
    assert work.rows[:, 1].tolist() == [0, 15, 0, 2, 0]


def check(device: torch.device, case: Case, ragged: list[tuple[int, int]], spares: tuple[int, ...]) -> None:
    """Run both kernels on a batch of sequences, in which values that they must not read are NaN."""
    torch.manual_seed(0)
    heads, tokens, block_size = case.heads, sum(length for length, _ in ragged), case.block_size
    per_sequence = [-(-context // block_size) for _, context in ragged]
    blocks = sum(per_sequence) + 1
    ids = torch.randperm(blocks - 1).split(per_sequence)
    table = torch.full((len(ragged), max(per_sequence) + 1), blocks - 1)
    caches = [torch.full((blocks * block_size, heads.kv, dim), torch.nan) for dim in (*heads[2:], 1, 1)]
    scoring = Scoring(
        heads.key_dim**-0.5, case.window, case.softcap, causal=case.causal,
        sinks=torch.randn(heads.query) if case.sinks else None,
        alibi=torch.rand(heads.query) if case.alibi else None,
    )  # fmt: skip
    query = torch.randn(tokens, heads.query, heads.key_dim).to(case.dtype)
    expected, rows, start = [], [], 0
    for sequence, (length, context) in enumerate(ragged):
        table[sequence, : per_sequence[sequence]] = ids[sequence]
        slots = (ids[sequence][:, None] * block_size + torch.arange(block_size)).flatten()[:context]
        new = [torch.randn(context, heads.kv, dim).to(case.dtype) for dim in heads[2:]]
        (key, key_scale), (value, value_scale) = (
            map(quantised, new) if case.float8 else ((kv, torch.ones(context, heads.kv, 1)) for kv in new)
        )
        hidden = max(0, spec_of(case.window).first_needed(context - length))
        for cache, new in zip(caches, (key, value, key_scale, value_scale), strict=True):
            cache[slots[hidden:]] = new[hidden:].float()
        stored = key.float() * key_scale, value.float() * value_scale
        expected.append(attention(query[start : start + length], *stored, scoring))
        rows.append([sequence, start, length, context])
        start += length
    paged = [cache.view(blocks, block_size, heads.kv, -1).to(device) for cache in caches]
    keys, values = (
        Pages(data.to(FLOAT8 if case.float8 else case.dtype), scales if case.float8 else None)
        for data, scales in zip(paged[:2], paged[2:], strict=True)
    )
    sequences, single = torch.tensor(rows, dtype=torch.int32), torch.tensor([n == 1 for n, _ in ragged])
    scoring = scoring._replace(
        sinks=scoring.sinks if scoring.sinks is None else scoring.sinks.to(device),
        alibi=scoring.alibi if scoring.alibi is None else scoring.alibi.to(device),
    )
    shared = (query.to(device), keys, values, table.to(device, torch.int32))
    for spare in spares:
        out = torch.full((tokens, heads.query, heads.value_dim), torch.nan, device=device, dtype=case.dtype)
        if single.any():
            decodes = sequences[single].to(device)
            work = plan_work(decodes, case.window, heads.kv, spare)
            decode(out, *shared, decodes, scoring, work)
            again = torch.full_like(out, torch.nan)
            # As in another layer, and with another program that finishes last.
            decode(again, *shared, decodes, scoring, work._replace(items=work.items.flip(0).contiguous()))
            assert torch.equal(out.nan_to_num(), again.nan_to_num())
            assert not work.finished.any()
        if not single.all():
            prefill(out, *shared, sequences[~single].to(device), scoring, invariant=spare > 1)
        tolerance = TOLERANCE[case.dtype]
        torch.testing.assert_close(out.cpu().float(), torch.cat(expected), atol=tolerance, rtol=tolerance)


def attention(query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
    """Attend for query [n, heads, dim], the last n tokens of a sequence; keys, values: [context, kv heads, dim]."""
    count, heads, _ = query.shape
    context, kv_heads, _ = keys.shape
    keys, values = (cached.float().repeat_interleave(heads // kv_heads, 1) for cached in (keys, values))
    scores = torch.einsum("nhd,chd->nhc", query.float(), keys) * scoring.scaling
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    distance = torch.arange(context - count, context)[:, None] - torch.arange(context)
    if scoring.alibi is not None:
        scores = scores - scoring.alibi[:, None] * distance[:, None]
    hidden = (distance < 0) & scoring.causal
    if scoring.window is not None:
        own = torch.arange(context - count, context)[:, None]
        hidden |= distance.abs() >= scoring.window.seen(own)
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    if scoring.sinks is not None:
        scores = torch.cat([scores, scoring.sinks[:, None].expand(count, heads, 1)], -1)
    return torch.einsum("nhc,chd->nhd", scores.softmax(-1)[..., :context], values)
