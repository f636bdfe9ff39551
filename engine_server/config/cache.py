"""Settings of the KV cache."""

import msgspec


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Size and layout of the KV cache."""

    # Tokens per block.
    block_size: int
    # Share of a GPU's memory for weights, activations and cache together.
    gpu_memory_utilization: float
    # Size of the cache; None: from free memory.
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    # Number of states of recurrent layers; None: see `num_state_slots` in modeling/cache/kv_cache.py.
    num_state_slots: int | None = None
    enable_prefix_caching: bool = True
    # "auto": the model's dtype; or "fp8", "fp8_e4m3", "int8", with a scale for each head of each token.
    cache_dtype: str = "auto"
    # Number of blocks of each kind of attention without a window (of every kind if all have windows), and the bytes of
    # a token in all layers of the first rank; known once the core is ready.
    num_gpu_blocks: int | None = None
    bytes_per_token: int | None = None
    # Bytes of a state of all recurrent layers; likewise.
    bytes_per_state: int | None = None
