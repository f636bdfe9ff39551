"""The size of the KV cache and of its pools: as configured, or from the free memory."""

from bisect import bisect_right
from collections.abc import Sequence

import torch

from engine_server.config import CacheConfig, EngineConfig, SchedulerConfig
from engine_server.contract.cluster.memory_shortage import MemoryShortage
from engine_server.modeling.cache.layout import Layout
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.cache.quantised import FLOAT8, INT8
from engine_server.modeling.cache.spec import CacheSpec
from engine_server.modeling.device.interface import Device

# The dtypes of a quantised cache by the setting's values.
QUANTISED = {"fp8": FLOAT8, "fp8_e4m3": FLOAT8, "int8": INT8}
# A pool of limited size has a unit for cached prefixes for each four blocks of the whole context.
CACHED_SHARE = 4


def cache_dtype(config: CacheConfig, computing: torch.dtype, platform: Device) -> torch.dtype:
    """Return the dtype of K and V in the cache; `computing` is the model's.

    Raises ValueError for a dtype that the device does not support in a cache.
    """
    if config.cache_dtype == "auto":
        return computing
    dtype = QUANTISED[config.cache_dtype]
    platform.check_cache_dtype(dtype, config.cache_dtype)
    return dtype


def pool_sizes(cache: CacheConfig, scheduling: SchedulerConfig, layout: Layout, count: int) -> list[int]:
    """Return the number of units of each pool if a kind that keeps the whole context has `count`, or else every kind.

    A pool whose kinds keep less has the units that `max_num_seqs` requests need at once, and some for cached prefixes.
    It has no more units, and takes no more memory, than the whole context, so that long requests don't find their
    memory reserved for others; but it holds what one request needs.
    """

    def most_units(specs: list[CacheSpec], rows: int) -> int:
        return sum(
            spec.most_units(rows, scheduling.max_num_batched_tokens, cache.block_size) for spec in specs
        )

    unit = layout.unit_bytes(cache.block_size, torch.bfloat16)
    sizes = []
    for pool in range(layout.num_pools):
        specs = [spec for spec, own in zip(layout.specs, layout.pools, strict=True) if own == pool]
        size = most = count * len(specs)
        if layout.whole_kind is not None:
            size = most_units(specs, scheduling.max_num_seqs)
            if cache.enable_prefix_caching:
                size += most // CACHED_SHARE
            memory = count * unit[layout.pools[layout.whole_kind]]
            size = max(min(size, memory // unit[pool]), most_units(specs, rows=1))
        sizes.append(min(size, most))
    return sizes


def num_state_slots(config: EngineConfig, size: int, ledger: MemoryLedger) -> int:
    """Return the number of states of recurrent layers: 4 for each row, so that it finds its prompt again.

    They are its current one and the next, its latest at a block's end, and that of its prompt. All take at most half
    of the cache's memory, but one is needed. size: the bytes of a state; 0: there are none.
    """
    if not size:
        return 0
    cache = config.cache_config
    if cache.num_state_slots is not None:
        return cache.num_state_slots
    memory = cache.kv_cache_memory_bytes
    if memory is None:
        memory = ledger.cache_memory(cache.gpu_memory_utilization, with_states=True)
    return max(1, min(4 * config.scheduler_config.max_num_seqs, memory // 2 // size))


def num_blocks(
    config: EngineConfig,
    layouts: Sequence[tuple[Layout, torch.dtype]],
    ledger: MemoryLedger,
    longest: int,
    states: int = 0,
) -> int:
    """Return how many blocks fit for the kind that keeps the whole context, or for every kind if none does.

    It is 0 for layers without a cache.

    layouts: of the models that use the same blocks, each with the dtype of its K and V; the first one has the pools of
    all. ledger: has all other parts. states: the bytes of recurrent layers' states, which the cache's memory includes.
    Raises ValueError, with both sizes, if one request of `longest` tokens does not
    fit.
    """
    target, cache, platform = layouts[0][0], config.cache_config, ledger.platform
    if not target.shapes:
        return 0
    by_layout = [layout.unit_bytes(cache.block_size, dtype) for layout, dtype in layouts]
    block = [sum(sizes) for sizes in zip(*by_layout, strict=True)]

    def size(count: int) -> int:
        sizes = pool_sizes(cache, config.scheduler_config, target, count)
        return sum(number * each for number, each in zip(sizes, block, strict=True))

    count, setting, others = cache.num_gpu_blocks_override, "num_gpu_blocks_override", ""
    if count is None:
        memory, setting = cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if memory is None:
            memory = ledger.cache_memory(cache.gpu_memory_utilization, with_states=states > 0)
            setting, others = platform.cache_setting, ledger.account()
        memory = max(0, memory - states)
        count = bisect_right(range(1, memory + 1), memory, key=size)
    needed = -(-longest // cache.block_size)
    if count < needed:
        sizes = MemoryShortage(
            (size(needed) + states) >> 20, (size(count) + states) >> 20, platform.device.type
        )
        raise ValueError(
            f"one request of max_model_len {longest} needs {needed} blocks of KV cache; there is room for {count}: "
            f"{sizes}. Lower max_model_len, or raise {setting}{others}"
        )
    return count
