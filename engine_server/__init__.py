"""Fairlead's data plane. The engine's public names are imported when they are first used (PEP 562), so that
the router and the command line never pay for torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_server.config import EngineConfig, UsageContext
    from engine_server.engine.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from engine_server.engine.async_llm import AsyncLLM, AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from engine_server.engine.errors import EngineDeadError, InvalidRequestError, QueueFullError
    from engine_server.engine.inputs import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
    from engine_server.engine.llm_engine import LLMEngine
    from engine_server.engine.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from engine_server.engine.pooling_params import PoolingParams
    from engine_server.engine.sampling_params import RequestOutputKind, SamplingParams
    from engine_server.llm import LLM
    from engine_server.telemetry.loggers import StatLoggerBase

_HOME = {
    "AsyncEngineArgs": "engine.arg_utils",
    "AsyncLLM": "engine.async_llm",
    "AsyncLLMEngine": "engine.async_llm",
    "BeamSearchOutput": "engine.beam_search",
    "BeamSearchParams": "engine.beam_search",
    "BeamSearchSequence": "engine.beam_search",
    "ClassificationOutput": "engine.outputs",
    "ClassificationRequestOutput": "engine.outputs",
    "CompletionOutput": "engine.outputs",
    "EmbeddingOutput": "engine.outputs",
    "EmbeddingRequestOutput": "engine.outputs",
    "EmbedsPrompt": "engine.inputs",
    "EngineArgs": "engine.arg_utils",
    "EngineConfig": "engine.config",
    "EngineDeadError": "engine.errors",
    "InvalidRequestError": "engine.errors",
    "LLM": "llm",
    "LLMEngine": "engine.llm_engine",
    "LoRARequest": "engine.adapters",
    "Logprob": "engine.outputs",
    "PoolingOutput": "engine.outputs",
    "PoolingParams": "engine.pooling_params",
    "PoolingRequestOutput": "engine.outputs",
    "PromptAdapterRequest": "engine.adapters",
    "PromptType": "engine.inputs",
    "QueueFullError": "engine.errors",
    "RequestOutput": "engine.outputs",
    "RequestOutputKind": "engine.sampling_params",
    "SamplingParams": "engine.sampling_params",
    "ScoringOutput": "engine.outputs",
    "ScoringRequestOutput": "engine.outputs",
    "StatLoggerBase": "telemetry.loggers",
    "TextPrompt": "engine.inputs",
    "TokensPrompt": "engine.inputs",
    "UsageContext": "engine.config",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EmbedsPrompt",
    "EngineArgs",
    "EngineConfig",
    "EngineDeadError",
    "InvalidRequestError",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptAdapterRequest",
    "PromptType",
    "QueueFullError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StatLoggerBase",
    "TextPrompt",
    "TokensPrompt",
    "UsageContext",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"engine_server.{_HOME[name]}"), name)
