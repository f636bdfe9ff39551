"""A kernel that writes a step's K and V to the paged cache."""

import triton
import triton.language as tl
from torch import Tensor

from engine_server.modeling.cache import quantised
from engine_server.modeling.cache.layout import Pages

# Elements that one program copies at a time.
TILE = 4096
LARGEST = tl.constexpr(quantised.LARGEST[quantised.FLOAT8])
SMALLEST = tl.constexpr(quantised.SMALLEST)


def write_cache(keys: Pages, values: Pages, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write token t's K and V to slot `slots[t]` of the cache, in its dtype; with scales, as `quantised` does.

    keys, values: [blocks, block size, kv heads, dim], contiguous; key, value: [T, kv heads, dim], of unit stride in
    dim; slots: int32 [T], block id * block size + offset, or -1 for a token that is not kept. K and V may have
    different dims.
    """
    tokens, heads, key_dim = key.shape
    value_dim = value.shape[2]
    width = triton.next_power_of_2(max(key_dim, value_dim))
    head_tile = min(triton.next_power_of_2(heads), max(1, TILE // width))
    _write_cache[(tokens, triton.cdiv(heads, head_tile))](
        *keys, *values, key, value, slots, *key.stride()[:2], *value.stride()[:2],
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, HEAD_TILE=head_tile, WIDTH=width,
    )  # fmt: skip


@triton.jit
def _write_cache(
    keys, key_scales, values, value_scales, key, value, slots, key_token, key_head, value_token, value_head,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    heads = tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    kept = (heads < HEADS) & (slot >= 0)
    rows = slot * HEADS + heads
    write_rows(keys, key_scales, rows, key + token * key_token + heads * key_head, kept, KEY_DIM, WIDTH)
    write_rows(
        values, value_scales, rows, value + token * value_token + heads * value_head, kept, VALUE_DIM, WIDTH
    )


@triton.jit
def write_rows(cache, scales, rows, heads, kept, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Copy the heads at the pointers `heads` to `rows` of a cache, where `kept`."""
    dims = tl.arange(0, WIDTH)[None, :]
    inside = kept[:, None] & (dims < DIM)
    moved = tl.load(heads[:, None] + dims, mask=inside, other=0.0)
    if scales is not None:
        moved = moved.to(tl.float32)
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(moved), 1), SMALLEST), LARGEST)
        tl.store(scales + rows, scale, mask=kept)
        moved = tl.div_rn(moved, scale[:, None])
    tl.store(cache + rows[:, None] * DIM + dims, moved.to(cache.dtype.element_ty), mask=inside)
