"""Calls of the C++ kernels that write K and V to pages and attend over them. Their layout is native/cache.h's."""

import torch
from torch import Tensor

from engine_server.modeling.cache.layout import Pages
from engine_server.modeling.cache.quantised import FLOAT8, INT8
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.native.library import DTYPES, address, kernels

# Pages have tokens in groups of this number; a block is some groups.
GROUP = 16
# The kernels' numbers of the dtypes of quantised pages.
QUANTISED = {INT8: 1, FLOAT8: 2}


def takes(dtype: torch.dtype, keys: Pages) -> bool:
    """Return True if the kernels compute with queries of `dtype` over pages [blocks, kv heads, tokens, dim]."""
    whole = keys.data.shape[-1] * dtype.itemsize % torch.float32.itemsize == 0
    stored = keys.data.dtype == dtype or keys.data.dtype in QUANTISED
    return dtype in DTYPES and stored and whole and keys.data.shape[2] % GROUP == 0


def write(keys: Pages, values: Pages, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write key and value [T, kv heads, dim] to slots [T]: block id * block size + offset."""
    key, value = with_unit_stride(key), with_unit_stride(value)
    tokens, kv_heads, key_dim = key.shape
    kernels().write_cache(
        key.dtype == torch.bfloat16, QUANTISED.get(keys.data.dtype, 0), *addresses(keys), *addresses(values),
        key.data_ptr(), key.stride(0), key.stride(1), value.data_ptr(), value.stride(0), value.stride(1),
        slots.data_ptr(), tokens, kv_heads, key_dim, value.shape[-1], keys.data.shape[2],
    )  # fmt: skip


def attend(
    keys: Pages, values: Pages, query: Tensor, table: Tensor, sequences: Tensor, scoring: Scoring
) -> Tensor:
    """Return [T, query heads, value dim] of query [T, query heads, key dim].

    table: int32 [R, blocks a row]. sequences: int32 [S, 4], each a row of the table, the index of its first token, its
    number of tokens in this step, and in the pages.
    """
    query = with_unit_stride(query)
    tokens, heads, key_dim = query.shape
    kv_heads, block_size, value_dim = values.data.shape[1:]
    out = query.new_empty(tokens, heads, value_dim)
    by_head = [
        None if given is None else given.float().contiguous() for given in (scoring.sinks, scoring.alibi)
    ]
    kernels().attention(
        query.dtype == torch.bfloat16, QUANTISED.get(keys.data.dtype, 0), out.data_ptr(), query.data_ptr(),
        query.stride(0), query.stride(1), *addresses(keys), *addresses(values), table.data_ptr(), table.shape[1],
        sequences.data_ptr(), len(sequences), heads, kv_heads, key_dim, value_dim, block_size,
        scoring.causal, *(scoring.window or (0, False)), scoring.scaling, scoring.softcap or 0.0,
        *map(address, by_head),
    )  # fmt: skip
    return out


def with_unit_stride(given: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous, copied only if necessary."""
    return given if given.stride(-1) == 1 else given.contiguous()


def addresses(pages: Pages) -> tuple[int | None, int | None]:
    """Return the addresses of the elements of pages and of their scales, if they have any."""
    return address(pages.data), address(pages.scales)
