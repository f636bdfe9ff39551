"""The KV cache's settings."""

import msgspec


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int  # tokens a block
    gpu_memory_utilization: float  # share of a GPU's memory for weights, activations and cache together
    kv_cache_memory_bytes: int | None  # the cache's own size; None: from what is free
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool = True
    cache_dtype: str = (
        "auto"  # as the model computes; or "fp8", "fp8_e4m3", with a scale for each token's head
    )
    num_gpu_blocks: int | None = None  # how many there are; known once the core is ready
