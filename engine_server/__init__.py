"""Fairlead's data plane. The engine's public names are imported when they are first used (PEP 562), so that the router
and the command line never import torch."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of _NAMES_BY_MODULE for type checkers; a test compares the two
    from engine_server.config import EngineConfig as EngineConfig
    from engine_server.config import UsageContext as UsageContext
    from engine_server.engine.async_llm import AsyncLLM as AsyncLLM
    from engine_server.engine.async_llm import AsyncLLMEngine as AsyncLLMEngine
    from engine_server.engine.beam_search import BeamSearchOutput as BeamSearchOutput
    from engine_server.engine.beam_search import BeamSearchParams as BeamSearchParams
    from engine_server.engine.beam_search import BeamSearchSequence as BeamSearchSequence
    from engine_server.engine.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from engine_server.engine.engine_args import EngineArgs as EngineArgs
    from engine_server.engine.llm import LLM as LLM
    from engine_server.engine.llm_engine import LLMEngine as LLMEngine
    from engine_server.requests.adapters import LoRARequest as LoRARequest
    from engine_server.requests.adapters import PromptAdapterRequest as PromptAdapterRequest
    from engine_server.requests.errors import EngineDeadError as EngineDeadError
    from engine_server.requests.errors import InvalidRequestError as InvalidRequestError
    from engine_server.requests.errors import QueueFullError as QueueFullError
    from engine_server.requests.logprobs import FlatLogprobs as FlatLogprobs
    from engine_server.requests.logprobs import Logprob as Logprob
    from engine_server.requests.outputs import ClassificationOutput as ClassificationOutput
    from engine_server.requests.outputs import ClassificationRequestOutput as ClassificationRequestOutput
    from engine_server.requests.outputs import CompletionOutput as CompletionOutput
    from engine_server.requests.outputs import EmbeddingOutput as EmbeddingOutput
    from engine_server.requests.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from engine_server.requests.outputs import PoolingOutput as PoolingOutput
    from engine_server.requests.outputs import PoolingRequestOutput as PoolingRequestOutput
    from engine_server.requests.outputs import RequestMetrics as RequestMetrics
    from engine_server.requests.outputs import RequestOutput as RequestOutput
    from engine_server.requests.outputs import ScoringOutput as ScoringOutput
    from engine_server.requests.outputs import ScoringRequestOutput as ScoringRequestOutput
    from engine_server.requests.pooling_params import PoolingParams as PoolingParams
    from engine_server.requests.prompts import EmbedsPrompt as EmbedsPrompt
    from engine_server.requests.prompts import PromptType as PromptType
    from engine_server.requests.prompts import TextPrompt as TextPrompt
    from engine_server.requests.prompts import TokensPrompt as TokensPrompt
    from engine_server.requests.sampling_params import RequestOutputKind as RequestOutputKind
    from engine_server.requests.sampling_params import SamplingParams as SamplingParams
    from engine_server.requests.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
    from engine_server.telemetry.loggers import StatLoggerBase as StatLoggerBase

_NAMES_BY_MODULE = {
    "config": ("EngineConfig", "UsageContext"),
    "engine.async_llm": ("AsyncLLM", "AsyncLLMEngine"),
    "engine.beam_search": ("BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"),
    "engine.engine_args": ("AsyncEngineArgs", "EngineArgs"),
    "engine.llm": ("LLM",),
    "engine.llm_engine": ("LLMEngine",),
    "requests.adapters": ("LoRARequest", "PromptAdapterRequest"),
    "requests.errors": ("EngineDeadError", "InvalidRequestError", "QueueFullError"),
    "requests.logprobs": ("FlatLogprobs", "Logprob"),
    "requests.outputs": (
        "ClassificationOutput",
        "ClassificationRequestOutput",
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "PoolingOutput",
        "PoolingRequestOutput",
        "RequestMetrics",
        "RequestOutput",
        "ScoringOutput",
        "ScoringRequestOutput",
    ),
    "requests.pooling_params": ("PoolingParams",),
    "requests.prompts": ("EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"),
    "requests.sampling_params": ("RequestOutputKind", "SamplingParams"),
    "requests.structured_outputs": ("StructuredOutputsParams",),
    "telemetry.loggers": ("StatLoggerBase",),
}
# OpenMP's threads, which compute torch's own operations on a CPU, spin for milliseconds before they sleep, on CPUs that
# then the threads of our kernels (modeling/native/threads.h), the server and other processes lack. This is some
# microseconds, about as long as they wait for each other in one operation. libgomp reads it when torch is imported.
if "torch" not in sys.modules:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"engine_server.{_MODULES[name]}"), name)
