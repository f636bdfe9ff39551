"""Writing a step's K and V into the paged cache."""

import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements that one program moves at a time


def write_cache(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Put token t's K and V at place `slots[t]` of the cache, converted to the cache's type.

    keys, values: [blocks, block size, kv heads, dim], contiguous; key, value: [T, kv heads, dim], of unit stride in
    dim; slots: int32 [T], block id * block size + offset, or -1 for a token that is not kept. K and V may have dims
    of their own.
    """
    tokens, heads, key_dim = key.shape
    value_dim = value.shape[2]
    width = triton.next_power_of_2(max(key_dim, value_dim))
    head_tile = min(triton.next_power_of_2(heads), max(1, TILE // width))
    _write_cache[(tokens, triton.cdiv(heads, head_tile))](
        keys, values, key, value, slots, *key.stride()[:2], *value.stride()[:2],
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, HEAD_TILE=head_tile, WIDTH=width,
    )  # fmt: skip


@triton.jit
def _write_cache(
    keys, values, key, value, slots, key_token, key_head, value_token, value_head,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    heads = (tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE))[:, None]
    dims = tl.arange(0, WIDTH)[None, :]
    known = (heads < HEADS) & (slot >= 0)
    kept = known & (dims < KEY_DIM)
    moved = tl.load(key + token * key_token + heads * key_head + dims, mask=kept)
    tl.store(keys + (slot * HEADS + heads) * KEY_DIM + dims, moved.to(keys.dtype.element_ty), mask=kept)
    kept = known & (dims < VALUE_DIM)
    moved = tl.load(value + token * value_token + heads * value_head + dims, mask=kept)
    tl.store(values + (slot * HEADS + heads) * VALUE_DIM + dims, moved.to(values.dtype.element_ty), mask=kept)
