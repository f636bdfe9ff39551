"""Rotary position embeddings (RoFormer, Su et al. 2021, arXiv 2104.09864) of queries and keys, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # elements that one program turns


def rotate(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Turn pairs of dims by their angles, computed in float32; dims that have no angle are copied.

    query: [T, query heads, dim]; key: [T, kv heads, dim]; of any strides. cos, sin: [T, pairs], of any strides.
    Pair i is dims i and pairs + i (GPT-NeoX), or if `interleaved` dims 2i and 2i + 1 (GPT-J).
    """
    query, key = (given if given.stride(-1) == 1 else given.contiguous() for given in (query, key))
    tokens, heads, dim = query.shape
    kv_heads, pairs = key.shape[1], cos.shape[1]
    turned_query, turned_key = query.new_empty(query.shape), key.new_empty(key.shape)
    width = triton.next_power_of_2(max(pairs, dim - 2 * pairs))
    tile = max(1, TILE // width)
    tiles = triton.cdiv(heads, tile)
    _rotate[tokens, tiles + triton.cdiv(kv_heads, tile)](
        turned_query, turned_key, query, key, cos, sin,
        *query.stride()[:2], *key.stride()[:2], *cos.stride(), *sin.stride(),
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAIRS=pairs, INTERLEAVED=interleaved,
        TILES=tiles, HEAD_TILE=tile, WIDTH=width,
    )  # fmt: skip
    return turned_query, turned_key


@triton.jit
def _rotate(
    turned_query, turned_key, query, key, cos, sin,
    query_token, query_head, key_token, key_head, cos_token, cos_pair, sin_token, sin_pair,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, TILES: tl.constexpr, HEAD_TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One token (axis 0), some of its query heads or of its KV heads (axis 1)."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    of_keys = tile >= TILES
    x = tl.where(of_keys, key + token * key_token, query + token * query_token)
    out = tl.where(of_keys, turned_key + token * KV_HEADS * DIM, turned_query + token * HEADS * DIM)
    heads = (tile - tl.where(of_keys, TILES, 0)) * HEAD_TILE + tl.arange(0, HEAD_TILE)[:, None]
    head_kept = heads < tl.where(of_keys, KV_HEADS, HEADS)
    x, out = x + heads * tl.where(of_keys, key_head, query_head), out + heads * DIM

    pairs = tl.arange(0, WIDTH)[None, :]
    kept = head_kept & (pairs < PAIRS)
    cosines = tl.load(cos + token * cos_token + pairs * cos_pair, mask=pairs < PAIRS).to(tl.float32)
    sines = tl.load(sin + token * sin_token + pairs * sin_pair, mask=pairs < PAIRS).to(tl.float32)
    first = 2 * pairs if INTERLEAVED else pairs
    second = first + 1 if INTERLEAVED else first + PAIRS
    one = tl.load(x + first, mask=kept).to(tl.float32)
    other = tl.load(x + second, mask=kept).to(tl.float32)
    tl.store(out + first, (one * cosines - other * sines).to(out.dtype.element_ty), mask=kept)
    tl.store(out + second, (other * cosines + one * sines).to(out.dtype.element_ty), mask=kept)
    if DIM > 2 * PAIRS:
        rest = 2 * PAIRS + pairs
        kept = head_kept & (rest < DIM)
        tl.store(out + rest, tl.load(x + rest, mask=kept), mask=kept)
