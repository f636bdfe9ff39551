"""Fairlead's data plane. The engine's public names are imported when they are first used (PEP 562), so that
the router and the command line never pay for torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_server.engine.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from engine_server.engine.async_llm import AsyncLLM, AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from engine_server.engine.config import EngineConfig, UsageContext
    from engine_server.engine.errors import EngineDeadError, InvalidRequestError, QueueFullError
    from engine_server.engine.inputs import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt
    from engine_server.engine.llm import LLM
    from engine_server.engine.llm_engine import LLMEngine
    from engine_server.engine.loggers import StatLoggerBase
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

_HOME = {
    "AsyncEngineArgs": "arg_utils",
    "AsyncLLM": "async_llm",
    "AsyncLLMEngine": "async_llm",
    "BeamSearchOutput": "beam_search",
    "BeamSearchParams": "beam_search",
    "BeamSearchSequence": "beam_search",
    "ClassificationOutput": "outputs",
    "ClassificationRequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "EmbeddingOutput": "outputs",
    "EmbeddingRequestOutput": "outputs",
    "EmbedsPrompt": "inputs",
    "EngineArgs": "arg_utils",
    "EngineConfig": "config",
    "EngineDeadError": "errors",
    "InvalidRequestError": "errors",
    "LLM": "llm",
    "LLMEngine": "llm_engine",
    "LoRARequest": "adapters",
    "Logprob": "outputs",
    "PoolingOutput": "outputs",
    "PoolingParams": "pooling_params",
    "PoolingRequestOutput": "outputs",
    "PromptAdapterRequest": "adapters",
    "PromptType": "inputs",
    "QueueFullError": "errors",
    "RequestOutput": "outputs",
    "RequestOutputKind": "sampling_params",
    "SamplingParams": "sampling_params",
    "ScoringOutput": "outputs",
    "ScoringRequestOutput": "outputs",
    "StatLoggerBase": "loggers",
    "TextPrompt": "inputs",
    "TokensPrompt": "inputs",
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
    return getattr(import_module(f"engine_server.engine.{_HOME[name]}"), name)
