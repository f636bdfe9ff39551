"""Attention over the paged cache: ragged prefill, and decode in chunks of a work list, by one kernel.

A program computes a tile of queries, some tokens of one sequence times the query heads that share a KV head, and
iterates over the sequence's keys with an online softmax (FlashAttention-2, Dao 2023, arXiv 2307.08691). K and V are
addressed per token through the block table, so any block size works (PagedAttention, Kwon et al. 2023, 2309.06180).
In decode a program has one chunk of a sequence's keys (work_list.py). Where a sequence has several, the program that
finishes last joins their results (flash-decoding, Dao et al. 2023, https://pytorch.org/blog/flash-decoding; in one
launch as in stream-K, Osama et al. 2023, arXiv 2301.03598).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.kernels.launch import (
    MIN_TILE,
    Launch,
    decode_table,
    launch_for,
    prefill_table,
)
from engine_server.modeling.kernels.work_list import WorkList

INTERPRETED = triton.knobs.runtime.interpret
LOG2_E = tl.constexpr(1.4426950408889634)
# Elements of partial results that `_join` loads together.
JOINED = 4096


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
    _launch(launch, tiles, None, out, query, keys, values, block_ids, sequences, scoring, invariant)


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
    launch = launch_for(decode_table(keys.data.dtype), query, keys.data, values.data)
    _launch(launch, len(work.items), work, out, query, keys, values, block_ids, sequences, scoring)


def _launch(
    launch: Launch,
    tiles: int,
    work: WorkList | None,
    out: Tensor,
    query: Tensor,
    keys: Pages,
    values: Pages,
    block_ids: Tensor,
    sequences: Tensor,
    scoring: Scoring,
    invariant: bool = False,
) -> None:
    (_, block_size, kv_heads, key_dim), value_dim = keys.data.shape, values.data.shape[3]
    group = query.shape[1] // kv_heads
    group_width, value_width = triton.next_power_of_2(group), max(MIN_TILE, triton.next_power_of_2(value_dim))
    items = rows = finished = parts = weights = None
    if work is not None:
        items, rows, finished = work.items, work.rows, work.finished
        parts = query.new_empty((work.num_rows, query.shape[1], value_dim), dtype=torch.float32)
        weights = parts.new_empty(parts.shape[:2])
    _attend[tiles, kv_heads](
        out, items, rows, finished, parts, weights, query, *keys, *values, block_ids, sequences, scoring.alibi,
        scoring.sinks, scoring.scaling * LOG2_E.value, block_ids.stride(0), *query.stride()[:2], *out.stride()[:2],
        len(sequences), GROUP=group, KEY_DIM=key_dim, VALUE_DIM=value_dim, BLOCK_SIZE=block_size,
        KEY_WIDTH=max(MIN_TILE, triton.next_power_of_2(key_dim)), VALUE_WIDTH=value_width,
        WINDOW=scoring.window and scoring.window.size, CHUNKED=bool(scoring.window and scoring.window.chunked),
        SOFTCAP=scoring.softcap and scoring.softcap * LOG2_E.value, CAUSAL=scoring.causal,
        INVARIANT=invariant, ROWS=launch.rows, KEYS=launch.keys,
        GROUP_WIDTH=group_width, JOINED=max(1, JOINED // (group_width * value_width)),
        DOT=tl.float32 if INTERPRETED else None,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["table_width", "num_sequences"])
def _attend(
    out, items, rows, finished, parts, weights, query, keys, key_scales, values, value_scales, block_ids, sequences,
    alibi, sinks, scale, table_width, query_token, query_head, out_token, out_head, num_sequences,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr, CAUSAL: tl.constexpr, INVARIANT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    GROUP_WIDTH: tl.constexpr, JOINED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Attend for one tile of queries, or one item of a work list (axis 0), of one KV head (axis 1).

    Scores are in powers of two: `scale` and SOFTCAP are multiplied by log2(e). Results go to out[token, head]; those of
    an item with a row to parts[row, head], and the log2 of the sum of the scores' powers to weights[row, head]. The
    program that counts the last of a sequence's items in finished[sequence, KV head] joins them and clears the count.
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

    queries = tl.arange(0, ROWS)
    own = position + queries // GROUP
    heads = kv_head * GROUP + queries % GROUP
    row_kept = queries // GROUP < count
    key_dims, value_dims = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    key_kept, value_kept = (key_dims < KEY_DIM)[:, None], (value_dims < VALUE_DIM)[None, :]
    places = (token + queries // GROUP).to(tl.int64)
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
        begin = max(position, 0) // WINDOW * WINDOW if CHUNKED else max(position - WINDOW + 1, 0)
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
        last = position + count - 1
        begin_of_last = last // WINDOW * WINDOW if CHUNKED else last + 1 - WINDOW
        seen_by_all = begin if begin < begin_of_last else seen_by_all
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
                if CHUNKED:
                    seen &= distance <= own[:, None] % WINDOW
                elif WINDOW is not None:
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
            tl.debug_barrier()  # all threads have written before one of them counts
            first_row, num_rows = tl.load(rows + sequence * 2), tl.load(rows + sequence * 2 + 1)
            count_place = finished + sequence * kv_heads + kv_head
            if tl.atomic_add(count_place, 1) == num_rows - 1:
                tl.store(count_place, 0)
                target = out + token.to(tl.int64) * out_token + kv_head * GROUP * out_head
                _join(
                    target, parts, weights, first_row, num_rows, kv_heads * GROUP, kv_head * GROUP, out_head,
                    GROUP, GROUP_WIDTH, VALUE_DIM, VALUE_WIDTH, JOINED,
                )  # fmt: skip
            return
    target = out + (places * out_token + heads * out_head)[:, None] + value_dims[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _join(
    out, parts, weights, first_row, num_rows, heads, first_head, out_head,
    GROUP: tl.constexpr, GROUP_WIDTH: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Set each of GROUP heads of out to the mean of its partial results, weighted by powers of two.

    Those are parts[row, head] of num_rows rows, written by programs on any processor: caches of a processor's own are
    not read.
    """
    own, dims = tl.arange(0, GROUP_WIDTH), tl.arange(0, WIDTH)
    own_kept, dims_kept = own < GROUP, dims < DIM
    most, total = tl.full([GROUP_WIDTH], float("-inf"), tl.float32), tl.zeros([GROUP_WIDTH], tl.float32)
    result = tl.zeros([GROUP_WIDTH, WIDTH], tl.float32)
    for start in range(0, num_rows, TILE):
        part = start + tl.arange(0, TILE)
        places = (first_row + part).to(tl.int64)[:, None] * heads + first_head + own[None, :]
        kept = (part < num_rows)[:, None] & own_kept[None, :]
        weight = tl.load(weights + places, mask=kept, other=float("-inf"), cache_modifier=".cg")
        found = tl.load(
            parts + (places * DIM)[:, :, None] + dims[None, None, :],
            mask=kept[:, :, None] & dims_kept[None, None, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        most_now = tl.where(own_kept, tl.maximum(most, tl.max(weight, 0)), 0)
        powers, shrink = tl.exp2(weight - most_now[None, :]), tl.exp2(most - most_now)
        result = result * shrink[:, None] + tl.sum(found * powers[:, :, None], 0)
        most, total = most_now, total * shrink + tl.sum(powers, 0)
    target = out + (own * out_head)[:, None] + dims[None, :]
    kept = own_kept[:, None] & dims_kept[None, :]
    tl.store(target, (result / total[:, None]).to(out.dtype.element_ty), mask=kept)
