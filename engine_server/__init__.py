"""Fairlead's data plane. The engine's public names are imported when they are first used (PEP 562), so that
the router and the command line never pay for torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_server.config import EngineConfig, UsageContext
    from engine_server.engine.async_llm import AsyncLLM, AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from engine_server.engine.engine_args import AsyncEngineArgs, EngineArgs
    from engine_server.engine.llm import LLM
    from engine_server.engine.llm_engine import LLMEngine
    from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.requests.errors import EngineDeadError, InvalidRequestError, QueueFullError
    from engine_server.requests.outputs import (
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
    from engine_server.requests.pooling_params import PoolingParams
    from engine_server.requests.prompts import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
    from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
    from engine_server.telemetry.loggers import StatLoggerBase

_HOME = {
    "AsyncEngineArgs": "engine.engine_args",
    "AsyncLLM": "engine.async_llm",
    "AsyncLLMEngine": "engine.async_llm",
    "BeamSearchOutput": "engine.beam_search",
    "BeamSearchParams": "engine.beam_search",
    "BeamSearchSequence": "engine.beam_search",
    "ClassificationOutput": "requests.outputs",
    "ClassificationRequestOutput": "requests.outputs",
    "CompletionOutput": "requests.outputs",
    "EmbeddingOutput": "requests.outputs",
    "EmbeddingRequestOutput": "requests.outputs",
    "EmbedsPrompt": "requests.prompts",
    "EngineArgs": "engine.engine_args",
    "EngineConfig": "config",
    "EngineDeadError": "requests.errors",
    "InvalidRequestError": "requests.errors",
    "LLM": "engine.llm",
    "LLMEngine": "engine.llm_engine",
    "LoRARequest": "requests.adapters",
    "Logprob": "requests.outputs",
    "PoolingOutput": "requests.outputs",
    "PoolingParams": "requests.pooling_params",
    "PoolingRequestOutput": "requests.outputs",
    "PromptAdapterRequest": "requests.adapters",
    "PromptType": "requests.prompts",
    "QueueFullError": "requests.errors",
    "RequestOutput": "requests.outputs",
    "RequestOutputKind": "requests.sampling_params",
    "SamplingParams": "requests.sampling_params",
    "ScoringOutput": "requests.outputs",
    "ScoringRequestOutput": "requests.outputs",
    "StatLoggerBase": "telemetry.loggers",
    "TextPrompt": "requests.prompts",
    "TokensPrompt": "requests.prompts",
    "UsageContext": "config",
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
