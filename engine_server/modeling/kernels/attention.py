"""Attention over the paged cache: ragged prefill, and decode in chunks of a work list, by one kernel.

A program computes a tile of queries, some tokens of one sequence times the query heads that share a KV head, and
iterates over the sequence's keys with an online softmax (FlashAttention-2, Dao 2023, arXiv 2307.08691). K and V are
addressed per token through the block table, so any block size works (PagedAttention, Kwon et al. 2023, 2309.06180).
In decode a program has one chunk of a sequence's keys (work_list.py), and a second kernel joins the results of those
sequences that have several (flash-decoding, Dao et al. 2023, https://pytorch.org/blog/flash-decoding).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.kernels.launch import (
    DECODE,
    MIN_TILE,
    Launch,
    launch_for,
    prefill_table,
)
from engine_server.modeling.kernels.work_list import WorkList
from engine_server.modeling.memory.cache_layout import Pages
from engine_server.modeling.scoring import Scoring

INTERPRETED = triton.knobs.runtime.interpret
LOG2_E = tl.constexpr(1.4426950408889634)
# Partial results that `_join` loads together.
JOINED = 16


def prefill(
    out: Tensor,
    query: Tensor,
    keys: Pages,
    values: Pages,
    block_ids: Tensor,
    sequences: Tensor,
    scoring: Scoring,
    invariant: bool = False,
) -> None:
    """Attend for sequences with any number of tokens in this step, over the cached context of each.

    out: [T, query heads, value dim]; query: [T, query heads, key dim], of unit stride in the last;
    keys, values: [blocks, block size, kv heads, dim], contiguous, of any float type, with scales or without;
    block_ids: int32 [S, blocks a row]; sequences: int32 [n, 4], ascending: row of block_ids, place of the first token
    in the step, tokens in the step, tokens in the cache with them. Tokens of no sequence are not written; a sequence
    without a token in the cache, which pads a captured batch, gets zeros. invariant: results are bitwise independent
    of batch composition.
    """
    launch, kv_heads = launch_for(prefill_table(), query, keys.data, values.data), keys.data.shape[2]
    tokens = launch.rows // (query.shape[1] // kv_heads)
    tiles = query.shape[0] // tokens + len(sequences)
    _launch(
        launch, tiles, None, out, None, None, query, keys, values, block_ids, sequences, scoring, invariant
    )


def decode(
    out: Tensor,
    query: Tensor,
    keys: Pages,
    values: Pages,
    block_ids: Tensor,
    sequences: Tensor,
    scoring: Scoring,
    work: WorkList,
) -> None:
    """Attend as `prefill` does, for sequences with one token in this step; `work`: `plan_work` of them."""
    launch = launch_for(DECODE, query, keys.data, values.data)
    parts = query.new_empty((work.num_rows, *out.shape[1:]), dtype=torch.float32)
    weights = parts.new_empty(parts.shape[:2])
    _launch(
        launch,
        len(work.items),
        work.items,
        out,
        parts,
        weights,
        query,
        keys,
        values,
        block_ids,
        sequences,
        scoring,
    )
    _join[len(sequences), out.shape[1]](
        out, parts, weights, sequences, work.rows, *out.stride()[:2],
        DIM=out.shape[2], WIDTH=triton.next_power_of_2(out.shape[2]), TILE=JOINED,
    )  # fmt: skip


def _launch(
    launch: Launch,
    tiles: int,
    items: Tensor | None,
    out: Tensor,
    parts: Tensor | None,
    weights: Tensor | None,
    query: Tensor,
    keys: Pages,
    values: Pages,
    block_ids: Tensor,
    sequences: Tensor,
    scoring: Scoring,
    invariant: bool = False,
) -> None:
    (_, block_size, kv_heads, key_dim), value_dim = keys.data.shape, values.data.shape[3]
    _attend[tiles, kv_heads](
        out, parts, weights, items, query, *keys, *values, block_ids, sequences, scoring.alibi, scoring.sinks,
        scoring.scaling * LOG2_E.value, block_ids.stride(0), *query.stride()[:2], *out.stride()[:2], len(sequences),
        GROUP=query.shape[1] // kv_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, BLOCK_SIZE=block_size,
        KEY_WIDTH=max(MIN_TILE, triton.next_power_of_2(key_dim)),
        VALUE_WIDTH=max(MIN_TILE, triton.next_power_of_2(value_dim)),
        WINDOW=scoring.window, SOFTCAP=scoring.softcap and scoring.softcap * LOG2_E.value, CAUSAL=scoring.causal,
        INVARIANT=invariant, ROWS=launch.rows, KEYS=launch.keys,
        DOT=tl.float32 if INTERPRETED else None,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_width", "num_sequences"])
def _attend(
    out, parts, weights, items, query, keys, key_scales, values, value_scales, block_ids, sequences, alibi, sinks,
    scale, table_width, query_token, query_head, out_token, out_head, num_sequences,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    CAUSAL: tl.constexpr, INVARIANT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Attend for one tile of queries, or one item of a work list (axis 0), of one KV head (axis 1).

    Scores are in powers of two: `scale` and SOFTCAP are multiplied by log2(e). Results go to out[token, head]; those of
    an item with a row to parts[row, head], and the log2 of the sum of the scores' powers to weights[row, head].
    """
    DECODE: tl.constexpr = items is not None
    TOKENS: tl.constexpr = 1 if DECODE else ROWS // GROUP
    tile, kv_head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)

    if DECODE:
        sequence, first = tl.load(items + tile * 4), 0
        if sequence < 0:
            return
    else:
        # Tiles of sequence s start at place // TOKENS + s, which leaves enough tiles for each; some are empty.
        tile = tl.num_programs(0) - 1 - tile  # a sequence's last tokens see most keys: start with them
        low, high = 0, num_sequences
        while high - low > 1:
            middle = (low + high) // 2
            if tl.load(sequences + middle * 4 + 1) // TOKENS + middle <= tile:
                low = middle
            else:
                high = middle
        sequence = low
        first = (tile - tl.load(sequences + sequence * 4 + 1) // TOKENS - sequence) * TOKENS
    blocks = block_ids + tl.load(sequences + sequence * 4).to(tl.int64) * table_width
    token = tl.load(sequences + sequence * 4 + 1) + first
    count = tl.load(sequences + sequence * 4 + 2) - first
    context = tl.load(sequences + sequence * 4 + 3)
    if first < 0 or count <= 0:
        return
    count = min(count, TOKENS)
    position = context - tl.load(sequences + sequence * 4 + 2) + first

    rows = tl.arange(0, ROWS)
    own = position + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    row_kept = rows // GROUP < count
    key_dims, value_dims = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    key_kept, value_kept = (key_dims < KEY_DIM)[:, None], (value_dims < VALUE_DIM)[None, :]
    places = (token + rows // GROUP).to(tl.int64)
    asked = tl.load(
        query + (places * query_token + heads * query_head)[:, None] + key_dims[None, :],
        mask=row_kept[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    )
    dot_type: tl.constexpr = asked.dtype if DOT is None else DOT
    asked = asked.to(dot_type)

    # The range of keys that any of these queries sees ...
    begin, end = 0, context
    if WINDOW is not None:
        begin = max(position - WINDOW + 1, 0)
    if CAUSAL:
        end = position + count
    elif WINDOW is not None:
        end = min(position + count + WINDOW - 1, context)
    starts_sequence = True
    if DECODE:
        chunk = tl.load(items + tile * 4 + 1)
        starts_sequence = chunk == begin
        begin, end = chunk, tl.load(items + tile * 4 + 2)
    # ... and the part of it that all of them see, which needs no mask.
    seen_by_all = end
    if CAUSAL:
        seen_by_all = min(end, position + 1)
    elif WINDOW is not None:
        seen_by_all = min(end, position + WINDOW)
    if WINDOW is not None:
        seen_by_all = begin if begin < position + count - WINDOW else seen_by_all
    clear = begin + max(seen_by_all - begin, 0) // KEYS * KEYS
    earliest = begin
    if INVARIANT:  # the same groups of keys in the same order, in any tile
        begin = begin // KEYS * KEYS
        clear = begin

    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full(
        [ROWS], 1.0, tl.float32
    )  # a sink's weight, or a placeholder that the first visible key scales to 0
    if sinks is not None:
        sink = tl.load(sinks + heads, mask=row_kept, other=0.0).to(tl.float32) * LOG2_E
        most = tl.where(starts_sequence, sink, most)
    if alibi is not None:
        slopes = tl.load(alibi + heads, mask=row_kept, other=0.0).to(tl.float32) * LOG2_E
    result = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for MASKED in tl.static_range(2):
        for start in tl.range(clear if MASKED else begin, end if MASKED else clear, KEYS):
            others = start + tl.arange(0, KEYS)
            inside = (others >= earliest) & (others < end) if INVARIANT else others < end
            slots = tl.load(blocks + others // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            cached = (slots * BLOCK_SIZE + others % BLOCK_SIZE) * kv_heads + kv_head
            key = tl.load(
                keys + (cached * KEY_DIM)[None, :] + key_dims[:, None],
                mask=key_kept & inside[None, :] if MASKED else key_kept,
                other=0.0,
            )
            scores = tl.dot(asked, key.to(dot_type), input_precision="ieee") * scale
            if key_scales is not None:
                scores *= tl.load(key_scales + cached, mask=inside, other=0.0)[None, :]
            distance = own[:, None] - others[None, :]
            if SOFTCAP is not None:
                scores = SOFTCAP - 2 * SOFTCAP / (tl.exp(2 / SOFTCAP * scores) + 1)  # equals SOFTCAP * tanh
            if alibi is not None:
                scores -= slopes[:, None] * distance
            if MASKED:
                seen = inside[None, :]
                if CAUSAL:
                    seen &= distance >= 0
                if WINDOW is not None:
                    seen &= (distance < WINDOW) & (distance > -WINDOW)
                scores = tl.where(seen, scores, float("-inf"))
            most_now = tl.maximum(most, tl.max(scores, 1))
            shift = tl.where(
                most_now == float("-inf"), 0, most_now
            )  # for a query without a visible key so far
            shrink = tl.exp2(most - shift)
            powers = tl.exp2(scores - shift[:, None])
            most, total = most_now, total * shrink + tl.sum(powers, 1)
            value = tl.load(
                values + (cached * VALUE_DIM)[:, None] + value_dims[None, :],
                mask=value_kept & inside[:, None] if MASKED else value_kept,
                other=0.0,
            )
            if value_scales is not None:
                powers *= tl.load(value_scales + cached, mask=inside, other=0.0)[None, :]
            result = result * shrink[:, None]
            result = tl.dot(powers.to(dot_type), value.to(dot_type), result, input_precision="ieee")
    result /= total[:, None]

    kept = row_kept[:, None] & value_kept
    if DECODE:
        row = tl.load(items + tile * 4 + 3)
        if row >= 0:
            place = row.to(tl.int64) * (kv_heads * GROUP) + heads
            tl.store(weights + place, most + tl.log2(total), mask=row_kept)
            tl.store(parts + (place * VALUE_DIM)[:, None] + value_dims[None, :], result, mask=kept)
            return
    target = out + (places * out_token + heads * out_head)[:, None] + value_dims[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _join(
    out, parts, weights, sequences, rows, out_token, out_head,
    DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Set out[token, head] to the mean of parts[row, head] over a sequence's rows, weighted by powers of two."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, count = tl.load(rows + sequence * 2), tl.load(rows + sequence * 2 + 1)
    if count == 0:
        return
    dims = tl.arange(0, WIDTH)
    most, total = float("-inf"), 0.0
    result = tl.zeros([WIDTH], tl.float32)
    for start in range(0, count, TILE):
        part = start + tl.arange(0, TILE)
        place = (first + part).to(tl.int64) * heads + head
        weight = tl.load(weights + place, mask=part < count, other=float("-inf"))
        most_now = tl.maximum(most, tl.max(weight, 0))
        powers, shrink = tl.exp2(weight - most_now), tl.exp2(most - most_now)
        kept = (part < count)[:, None] & (dims < DIM)[None, :]
        found = tl.load(parts + (place * DIM)[:, None] + dims[None, :], mask=kept, other=0.0)
        result = result * shrink + tl.sum(found * powers[:, None], 0)
        most, total = most_now, total * shrink + tl.sum(powers, 0)
    token = tl.load(sequences + sequence * 4 + 1).to(tl.int64)
    target = out + token * out_token + head * out_head + dims
    tl.store(target, (result / total).to(out.dtype.element_ty), mask=dims < DIM)
