"""The engine's settings, one module per concern."""

from engine_server.config.adapters import LoRAConfig, PromptAdapterConfig
from engine_server.config.cache import CacheConfig
from engine_server.config.decoding import DecodingConfig
from engine_server.config.device import DeviceConfig
from engine_server.config.engine import EngineConfig, UsageContext
from engine_server.config.load import LoadConfig
from engine_server.config.model import LogprobsMode, ModelConfig, SamplingDefaults
from engine_server.config.observability import ObservabilityConfig
from engine_server.config.parallel import ParallelConfig
from engine_server.config.pooling import (
    Activation,
    DenseActivation,
    DenseModule,
    NormalizeModule,
    Pooling,
    PoolingConfig,
)
from engine_server.config.quantization import QuantizationConfig
from engine_server.config.scheduler import SchedulerConfig
from engine_server.config.speculative import SpeculativeConfig

__all__ = [
    "Activation",
    "CacheConfig",
    "DecodingConfig",
    "DenseActivation",
    "DenseModule",
    "DeviceConfig",
    "EngineConfig",
    "LoRAConfig",
    "LoadConfig",
    "LogprobsMode",
    "ModelConfig",
    "NormalizeModule",
    "ObservabilityConfig",
    "ParallelConfig",
    "Pooling",
    "PoolingConfig",
    "PromptAdapterConfig",
    "QuantizationConfig",
    "SamplingDefaults",
    "SchedulerConfig",
    "SpeculativeConfig",
    "UsageContext",
]
