"""All settings of an engine after every default is resolved, in the form in which they are sent to the core."""

from __future__ import annotations

from enum import Enum
from typing import Self

import msgspec

from engine_server.config.adapters import LoRAConfig, PromptAdapterConfig
from engine_server.config.cache import CacheConfig
from engine_server.config.decoding import DecodingConfig
from engine_server.config.device import DeviceConfig
from engine_server.config.load import LoadConfig
from engine_server.config.model import ModelConfig
from engine_server.config.observability import ObservabilityConfig
from engine_server.config.parallel import ParallelConfig
from engine_server.config.scheduler import SchedulerConfig
from engine_server.config.speculative import SpeculativeConfig
from engine_server.config.start_facts import StartFacts


class UsageContext(Enum):
    """The entry point that created the engine. It is logged; no usage data are collected."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


class EngineConfig(msgspec.Struct, frozen=True):
    """All settings of an engine. Raises ValueError for those that are not supported yet."""

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
        if self.speculative_config is not None and self.model_config.pooling is not None:
            raise ValueError(
                "speculative_config is set; a pooling model generates no tokens, only None is allowed"
            )
        if self.prompt_adapter_config is not None and self.model_config.pooling is not None:
            raise ValueError("enable_prompt_adapter is set; a pooling model takes no prompt adapters")

    @property
    def most_running(self) -> int:
        """The most requests that run at the same time: each has a state, if the model has recurrent layers."""
        rows, states = self.scheduler_config.max_num_seqs, self.cache_config.num_state_slots
        return rows if states is None else min(rows, states)

    def as_started(self, facts: StartFacts) -> Self:
        """Return the config with what the core knows once the model is loaded."""
        cache = msgspec.structs.replace(
            self.cache_config,
            num_gpu_blocks=facts.num_blocks,
            bytes_per_token=facts.bytes_per_token or None,
            num_state_slots=facts.num_state_slots or None,
            bytes_per_state=facts.bytes_per_state or None,
        )
        model = msgspec.structs.replace(
            self.model_config, batch_invariant=facts.batch_invariant, refuses_pictures=facts.refuses_pictures
        )
        if model.fit_max_model_len and facts.num_blocks:
            fitting = min(model.max_model_len, facts.num_blocks * cache.block_size)
            model = msgspec.structs.replace(model, max_model_len=fitting)
        device = msgspec.structs.replace(
            self.device_config, kernels_in_use=facts.kernels, memory_bytes=facts.memory
        )
        return msgspec.structs.replace(self, cache_config=cache, model_config=model, device_config=device)

    def for_draft(self) -> Self | None:
        """Return the config with which the draft model is loaded, or None if there is none."""
        if self.speculative_config is None or self.speculative_config.draft_model_config is None:
            return None
        load = msgspec.structs.replace(self.load_config, quantization=None)
        return msgspec.structs.replace(
            self,
            model_config=self.speculative_config.draft_model_config,
            load_config=load,
            lora_config=None,
            speculative_config=None,
        )

    def with_executor(self, executor_class: type | None) -> Self:
        """Return the config of an engine that executes the model with this class; None: the same config.

        The core imports the class by its path.
        """
        if executor_class is None:
            return self
        path = f"{executor_class.__module__}:{executor_class.__qualname__}"
        return msgspec.structs.replace(
            self, parallel_config=msgspec.structs.replace(self.parallel_config, worker_cls=path)
        )
