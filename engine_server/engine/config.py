"""The engine's settings after every default is resolved: typed, frozen, and sent to the core as they are."""

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str  # the URI as it was given
    path: str  # the local folder that it resolved to
    tokenizer: str  # a local folder or a hub's name
    served_model_name: list[str]
    dtype: str  # "float32", "bfloat16", "float16" or "auto": as the weights are
    max_model_len: int  # prompt and output together, in tokens
    vocab_size: int
    eos_token_ids: list[int]
    seed: int
    skip_tokenizer_init: bool = False


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int  # tokens a block
    gpu_memory_utilization: float  # share of a GPU's memory for weights, activations and cache together
    kv_cache_memory_bytes: int | None  # the cache's own size; None: from what is free
    num_gpu_blocks_override: int | None
    num_gpu_blocks: int | None = None  # how many there are; known once the core is ready


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: int  # a step's token budget
    max_num_seqs: int
    enable_chunked_prefill: bool


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    device: str  # "auto", "cpu" or "cuda"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig


def with_blocks(config: EngineConfig, num_blocks: int) -> EngineConfig:
    """The config of an engine whose core is ready."""
    replace = msgspec.structs.replace
    return replace(config, cache=replace(config.cache, num_gpu_blocks=num_blocks))
