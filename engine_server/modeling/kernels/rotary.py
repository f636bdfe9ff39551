"""Rotary position embeddings (RoFormer, Su et al. 2021, arXiv 2104.09864) of queries and keys, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

# Pairs that one program rotates.
TILE = 1024


def rotate(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate pairs of dims by their angles, in float32; dims without an angle are copied.

    query: [T, query heads, dim]; key: [T, kv heads, dim]; of any strides. cos, sin: [T, pairs], of any strides.
    Pair i is dims i and pairs + i (GPT-NeoX), or if `interleaved` dims 2i and 2i + 1 (GPT-J).
    """
    query, key = (given if given.stride(-1) == 1 else given.contiguous() for given in (query, key))
    tokens, heads, dim = query.shape
    kv_heads, pairs = key.shape[1], cos.shape[1]
    turned_query, turned_key = query.new_empty(query.shape), key.new_empty(key.shape)
    width = triton.next_power_of_2(max(pairs, dim - 2 * pairs))
    rows, num_rows = max(1, TILE // width), tokens * (heads + kv_heads)
    _rotate[(triton.cdiv(num_rows, rows),)](
        turned_query, turned_key, query, key, cos, sin, num_rows,
        *query.stride()[:2], *key.stride()[:2], *cos.stride(), *sin.stride(),
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAIRS=pairs, INTERLEAVED=interleaved, ROWS=rows, WIDTH=width,
    )  # fmt: skip
    return turned_query, turned_key


@triton.jit(do_not_specialize=["num_rows"])
def _rotate(
    turned_query, turned_key, query, key, cos, sin, num_rows,
    query_token, query_head, key_token, key_head, cos_token, cos_pair, sin_token, sin_pair,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rotate ROWS rows; a row is one head of one token, first of the queries, then of the keys."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    token, head = rows // (HEADS + KV_HEADS), rows % (HEADS + KV_HEADS)
    of_query = query + token * query_token + head * query_head
    of_key = key + token * key_token + (head - HEADS) * key_head
    x = tl.where(head < HEADS, of_query, of_key)
    of_query, of_key = (
        turned_query + (token * HEADS + head) * DIM,
        turned_key + (token * KV_HEADS + head - HEADS) * DIM,
    )
    out = tl.where(head < HEADS, of_query, of_key)

    pairs = tl.arange(0, WIDTH)[None, :]
    kept = (rows < num_rows) & (pairs < PAIRS)
    cosines = tl.load(cos + token * cos_token + pairs * cos_pair, mask=kept).to(tl.float32)
    sines = tl.load(sin + token * sin_token + pairs * sin_pair, mask=kept).to(tl.float32)
    first = 2 * pairs if INTERLEAVED else pairs
    second = first + 1 if INTERLEAVED else first + PAIRS
    one = tl.load(x + first, mask=kept).to(tl.float32)
    other = tl.load(x + second, mask=kept).to(tl.float32)
    tl.store(out + first, (one * cosines - other * sines).to(out.dtype.element_ty), mask=kept)
    tl.store(out + second, (other * cosines + one * sines).to(out.dtype.element_ty), mask=kept)
    if DIM > 2 * PAIRS:
        rest = 2 * PAIRS + pairs
        kept = (rows < num_rows) & (rest < DIM)
        tl.store(out + rest, tl.load(x + rest, mask=kept), mask=kept)
