"""Norms and rotary embeddings of queries and keys, and the write of K and V to the paged cache, in one launch.

RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467; rotary embeddings: Su et al. 2021, arXiv 2104.09864.
"""

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.heads.pending import PendingNorm, PendingRotation
from engine_server.modeling.kernels.cache_write import LARGEST, SMALLEST, write_rows
from engine_server.modeling.kernels.dependent_launch import dependent, start

# Elements of heads that one program takes.
TILE = 1024


def write_heads(
    keys: Pages,
    values: Pages,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    rotation: PendingRotation,
    query_norm: PendingNorm | None = None,
    key_norm: PendingNorm | None = None,
) -> Tensor:
    """Return the normed and rotated queries, and write such keys, and the values, to the cache as `write_cache` does.

    query: [T, query heads, dim]; key: [T, kv heads, dim]; value: [T, kv heads, value dim], of unit stride in the last;
    slots: int32 [T], see `write_cache`. The results are those of `rms_norm`, `rotate` and `write_cache`: norms are
    rounded to the queries' dtype before they are rotated, and keys before they are quantised.
    """
    tokens, heads, dim = query.shape
    kv_heads, value_dim = value.shape[1:]
    cos, sin, pairs = rotation.cos, rotation.sin, rotation.cos.shape[1]
    assert all(norm is None or norm.weight.shape == (dim,) for norm in (query_norm, key_norm))
    out = query.new_empty(query.shape)
    tile = max(1, TILE // triton.next_power_of_2(dim))
    tiles = triton.cdiv(heads, tile) + 2 * triton.cdiv(kv_heads, tile)
    _write_heads[(tokens, tiles)](
        out, *keys, *values, query, key, value, slots, cos, sin, *settings(query_norm), *settings(key_norm),
        *query.stride()[:2], *key.stride()[:2], *value.stride()[:2], *cos.stride(), *sin.stride(),
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, VALUE_DIM=value_dim, PAIRS=pairs, INTERLEAVED=rotation.interleaved,
        TILE=tile, WIDTH=triton.next_power_of_2(pairs), REST=triton.next_power_of_2(max(1, dim - 2 * pairs)),
        VALUE_WIDTH=triton.next_power_of_2(value_dim), **dependent(),
    )  # fmt: skip
    return out


def settings(norm: PendingNorm | None) -> tuple[Tensor | None, float, float]:
    """Return a norm's weight, eps and offset."""
    return (None, 0.0, 0.0) if norm is None else (norm.weight, norm.eps, norm.offset)


@triton.jit
def _write_heads(
    out, keys, key_scales, values, value_scales, query, key, value, slots, cos, sin,
    query_weight, query_eps, query_offset, key_weight, key_eps, key_offset,
    query_token, query_head, key_token, key_head, value_token, value_head, cos_token, cos_pair, sin_token, sin_pair,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Take TILE heads of one token (axis 0): of its queries, of its keys, or of its values (axis 1, in this order)."""
    start(DEPENDENT)
    QUERY_TILES: tl.constexpr = (HEADS + TILE - 1) // TILE
    KV_TILES: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos += token * cos_token
    sin += token * sin_token
    if tile < QUERY_TILES:
        heads = tile * TILE + tl.arange(0, TILE)
        _turn(
            out, None, token * HEADS + heads, query + token * query_token + heads * query_head, heads < HEADS,
            query_weight, query_eps, query_offset, cos, sin, cos_pair, sin_pair,
            DIM, PAIRS, INTERLEAVED, WIDTH, REST,
        )  # fmt: skip
    else:
        slot = tl.load(slots + token).to(tl.int64)
        heads = (tile - QUERY_TILES) % KV_TILES * TILE + tl.arange(0, TILE)
        kept = (heads < KV_HEADS) & (slot >= 0)
        rows = slot * KV_HEADS + heads
        if tile < QUERY_TILES + KV_TILES:
            _turn(
                keys, key_scales, rows, key + token * key_token + heads * key_head, kept,
                key_weight, key_eps, key_offset, cos, sin, cos_pair, sin_pair,
                DIM, PAIRS, INTERLEAVED, WIDTH, REST,
            )  # fmt: skip
        else:
            given = value + token * value_token + heads * value_head
            write_rows(values, value_scales, rows, given, kept, VALUE_DIM, VALUE_WIDTH)


@triton.jit
def _turn(
    out, scales, rows, heads, kept, weight, eps, offset, cos, sin, cos_pair, sin_pair,
    DIM: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Norm and rotate the heads at the pointers `heads`, and write them to `rows` of out, where `kept`."""
    pairs, rest = tl.arange(0, WIDTH)[None, :], 2 * PAIRS + tl.arange(0, REST)[None, :]
    first = 2 * pairs if INTERLEAVED else pairs
    second = first + 1 if INTERLEAVED else first + PAIRS
    in_pair, in_rest = pairs < PAIRS, rest < DIM
    pair_kept, rest_kept = kept[:, None] & in_pair, kept[:, None] & in_rest
    one = tl.load(heads[:, None] + first, mask=pair_kept, other=0.0)
    other = tl.load(heads[:, None] + second, mask=pair_kept, other=0.0)
    others = tl.load(heads[:, None] + rest, mask=rest_kept, other=0.0)  # without an angle
    if weight is not None:
        squares = _squares(one) + _squares(other)
        if DIM > 2 * PAIRS:
            squares += _squares(others)
        shrink = tl.rsqrt(squares / DIM + eps)[:, None]
        one = _scaled(one, shrink, weight + first, offset, in_pair)
        other = _scaled(other, shrink, weight + second, offset, in_pair)
        others = _scaled(others, shrink, weight + rest, offset, in_rest)
    cosines = tl.load(cos + pairs * cos_pair, mask=in_pair, other=0.0).to(tl.float32)
    sines = tl.load(sin + pairs * sin_pair, mask=in_pair, other=0.0).to(tl.float32)
    x, y = one.to(tl.float32), other.to(tl.float32)
    one = (x * cosines - y * sines).to(one.dtype)
    other = (y * cosines + x * sines).to(other.dtype)
    if scales is not None:
        one, other, others = one.to(tl.float32), other.to(tl.float32), others.to(tl.float32)
        most = tl.max(tl.maximum(tl.abs(one), tl.abs(other)), 1)
        most = tl.maximum(most, tl.max(tl.abs(others), 1))
        scale = tl.div_rn(tl.maximum(most, SMALLEST), LARGEST)
        tl.store(scales + rows, scale, mask=kept)
        one, other = tl.div_rn(one, scale[:, None]), tl.div_rn(other, scale[:, None])
        others = tl.div_rn(others, scale[:, None])
    target = out + rows[:, None] * DIM
    tl.store(target + first, one.to(out.dtype.element_ty), mask=pair_kept)
    tl.store(target + second, other.to(out.dtype.element_ty), mask=pair_kept)
    if DIM > 2 * PAIRS:
        tl.store(target + rest, others.to(out.dtype.element_ty), mask=rest_kept)


@triton.jit
def _squares(x):
    """Return the sum of the squares of each row."""
    return tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)


@triton.jit
def _scaled(x, shrink, weights, offset, kept):
    """Return x * shrink * (weight + offset) in the dtype of x."""
    scale = tl.load(weights, mask=kept, other=0.0).to(tl.float32) + offset
    return (x.to(tl.float32) * shrink * scale).to(x.dtype)
