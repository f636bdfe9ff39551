"""The engine's settings after every default is resolved: typed, frozen, and sent to the core as they are."""

from __future__ import annotations

from enum import Enum
from typing import Literal, Self

import msgspec

Pooling = Literal["CLS", "LAST", "MEAN"]  # the first token's hidden state, the last's, or the mean of all
Activation = Literal["identity", "sigmoid", "softmax"]


class UsageContext(Enum):
    """Who made the engine. It is said in the log; nothing is collected."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a pooling model makes one vector of a prompt's hidden states."""

    pooling: Pooling
    normalize: bool  # to length 1, unless a request says otherwise
    encoder: bool  # attention both ways, over the whole prompt at once: no KV cache, no chunks
    num_labels: int | None  # of a classifier; None: the vector is an embedding
    activation: Activation  # of a classifier's scores
    dimensions: list[int]  # to which an embedding may be cut
    num_token_types: int  # of texts in one prompt that the model tells apart; 0: it doesn't


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
    batch_invariant: bool = False  # a token's logits have the same bits whatever is computed beside it
    skip_tokenizer_init: bool = False
    enforce_eager: bool = False  # no CUDA graphs
    logits_processors: list[str] = []  # import paths of those that requests may name
    pooling: PoolingConfig | None = None  # None: the model generates
    prompt_embeds_size: int | None = None  # of an embedding that may stand for a token; None: none may

    @property
    def runner(self) -> str:
        return "generate" if self.pooling is None else "pooling"

    @property
    def is_encoder(self) -> bool:
        return self.pooling is not None and self.pooling.encoder


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


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    tensor_parallel_size: int = 1
    worker_cls: str = "engine_server.engine.core.model_runner:ModelRunner"  # what executes the model


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: int  # a step's token budget
    max_num_seqs: int
    enable_chunked_prefill: bool
    policy: str = "fcfs"  # or "priority"
    async_scheduling: bool | None = None  # prepare a step while the one before runs; None: on a GPU
    max_queue: int | None = None  # requests that may wait beside `max_num_seqs` that run; None: any number


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    device: str  # "auto", "cpu" or "cuda"


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where weights come from."""

    load_format: str = "auto"  # or "safetensors", "gguf", or "dummy": random, from the configuration alone


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters beside the model. Not supported yet."""


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts that the model verifies. Not supported yet."""


class DecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How grammars are enforced; there is nothing to choose yet."""


class ObservabilityConfig(msgspec.Struct, frozen=True, kw_only=True):
    hang_timeout: float = 300.0  # seconds without progress after which a core counts as hung
    torch_profiler_dir: str | None = None  # the folder for traces
    otlp_traces_endpoint: str | None = None  # the URL that spans are posted to


class PromptAdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Learned prefixes. Not supported yet."""


class EngineConfig(msgspec.Struct, frozen=True):
    """All of an engine's settings. Raises ValueError for those that nothing can serve yet."""

    model_config: ModelConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    device_config: DeviceConfig
    load_config: LoadConfig
    lora_config: LoRAConfig | None = None
    speculative_config: SpeculativeConfig | None = None
    decoding_config: DecodingConfig = DecodingConfig()
    observability_config: ObservabilityConfig = ObservabilityConfig()
    prompt_adapter_config: PromptAdapterConfig | None = None

    def __post_init__(self) -> None:
        for name in ("lora_config", "speculative_config", "prompt_adapter_config"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not supported yet; it takes None")

    def with_blocks(self, num_blocks: int) -> Self:
        """The config of an engine whose core is ready."""
        cache = msgspec.structs.replace(self.cache_config, num_gpu_blocks=num_blocks)
        return msgspec.structs.replace(self, cache_config=cache)

    def with_executor(self, executor_class: type | None) -> Self:
        """Execute the model by this class, which crosses to the core by its import path; None changes nothing."""
        if executor_class is None:
            return self
        path = f"{executor_class.__module__}:{executor_class.__qualname__}"
        return msgspec.structs.replace(
            self, parallel_config=msgspec.structs.replace(self.parallel_config, worker_cls=path)
        )
