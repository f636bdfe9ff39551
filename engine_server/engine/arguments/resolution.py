"""Resolution of checked arguments to an EngineConfig: the model and every default."""

import logging
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec

from engine_server.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    LoRAConfig,
    ObservabilityConfig,
    ParallelConfig,
    PromptAdapterConfig,
    QuantizationConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from engine_server.contract.cluster.model_uri import EXAMPLES
from engine_server.engine.arguments.draft_model import with_draft_model
from engine_server.engine.arguments.fields import Arguments, SpeedArguments
from engine_server.engine.arguments.flags import full_dtype
from engine_server.engine.arguments.model_config import ModelDescription, describe_model

logger = logging.getLogger(__name__)

GPU_BUDGET = 8192
# With more tokens prompts are no faster, whatever the CPU.
CPU_BUDGET = 2048
# The longest gap that prompts cause between another request's tokens.
CPU_STEP_MS = 150.0
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
# Draft tokens of a step: with more requests than this many drafts are for, the device has enough to compute.
MAX_NUM_DRAFTS = 64
INT4_GROUP = 64


def resolve_config(args: Arguments) -> EngineConfig:
    """Resolve the model and every default. Raises ValueError, which names the argument."""
    check_types(args)
    warn_of_speed_arguments(args)
    if not args.model:
        raise ValueError(f"model is not given; it takes a folder, a .gguf file, {EXAMPLES}")
    if args.max_model_len == 0:
        raise ValueError("max_model_len is 0; it takes a number of tokens, or -1 for the longest that fits")
    if args.otlp_traces_endpoint is not None:
        try:
            import_module("engine_server.telemetry.tracing")
        except ImportError as error:
            message = f"otlp_traces_endpoint needs the extra `tracing` of this package: {error}"
            raise ValueError(message) from error
    speculative = None if args.speculative_config is None else SpeculativeConfig.of(args.speculative_config)
    description = describe_model(args)
    model = description.config
    if args.async_scheduling and model.pooling is not None:
        raise ValueError("async_scheduling is True; a pooling model's steps don't overlap")
    return EngineConfig(
        model_config=model,
        cache_config=CacheConfig(
            block_size=args.block_size or BLOCK_SIZE,
            gpu_memory_utilization=args.gpu_memory_utilization,
            kv_cache_memory_bytes=args.kv_cache_memory_bytes,
            num_gpu_blocks_override=args.num_gpu_blocks_override,
            num_state_slots=args.num_state_slots,
            enable_prefix_caching=args.enable_prefix_caching and model.pooling is None,
            cache_dtype=args.kv_cache_dtype,
        ),
        parallel_config=ParallelConfig(tensor_parallel_size=args.tensor_parallel_size),
        scheduler_config=_scheduler_config(args, description, speculative),
        device_config=DeviceConfig(device=args.device, kernels=args.kernels),
        lora_config=_lora_config(args),
        speculative_config=with_draft_model(speculative, args, model),
        prompt_adapter_config=_prompt_adapter_config(
            args, possible=model.pooling is None and description.takes_embeddings
        ),
        load_config=LoadConfig(load_format=args.load_format, quantization=_quantization_config(args)),
        observability_config=ObservabilityConfig(
            hang_timeout=args.hang_timeout,
            torch_profiler_dir=args.torch_profiler_dir,
            otlp_traces_endpoint=args.otlp_traces_endpoint,
        ),
    )


def check_types(args: Arguments) -> None:
    """Check each argument against its field's type. Raises ValueError, which names the argument."""
    args.dtype = full_dtype(args.dtype)  # type: ignore[assignment]
    for name, hint in get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            expected = str(error)
            if hint is NoneType:
                expected = "only None is supported"
            else:
                literals = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
                if literals:
                    expected = f"expected one of {', '.join(map(str, get_args(literals[0])))}"
            raise ValueError(f"{name} is {value!r}: {expected}") from None


def warn_of_speed_arguments(args: Arguments) -> None:
    """Log which of the parameters that have no effect here differ from their defaults. Raises ValueError."""
    if args.distributed_executor_backend == "uni" and args.tensor_parallel_size > 1:
        raise ValueError(
            f"distributed_executor_backend is 'uni', a single process; tensor_parallel_size is "
            f"{args.tensor_parallel_size}"
        )
    defaults = SpeedArguments()
    given = [
        item.name for item in fields(defaults) if getattr(args, item.name) != getattr(defaults, item.name)
    ]
    if given:
        logger.warning("%s: accepted for vLLM's sake, without effect here", ", ".join(given))


def _scheduler_config(
    args: Arguments, description: ModelDescription, speculative: SpeculativeConfig | None
) -> SchedulerConfig:
    model = description.config
    chunked = args.enable_chunked_prefill and not model.is_encoder
    budget, step_ms = args.max_num_batched_tokens, args.max_step_ms
    if step_ms is None:
        step_ms = CPU_STEP_MS if chunked and budget is None and not _uses_gpu(args) else 0
    if step_ms and not chunked:
        raise ValueError(f"max_step_ms is {step_ms:g}: without chunked prefill steps have no limit of time")
    if budget is None:
        budget = GPU_BUDGET if _uses_gpu(args) else CPU_BUDGET
        if not chunked:
            budget = max(budget, model.max_model_len)
    if not chunked and budget < model.max_model_len:
        raise ValueError(
            f"max_num_batched_tokens is {budget}: without chunked prefill it must be at least max_model_len, "
            f"{model.max_model_len}"
        )
    max_num_seqs = args.max_num_seqs or MAX_NUM_SEQS
    most = 0 if speculative is None else max_num_seqs * speculative.num_speculative_tokens
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=chunked,
        policy=args.scheduling_policy,
        async_scheduling=args.async_scheduling,
        max_queue=args.max_queue,
        max_num_partial_prefills=args.max_num_partial_prefills,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_step_ms=step_ms,
        max_num_drafts=min(most, MAX_NUM_DRAFTS),
    )


def _quantization_config(args: Arguments) -> QuantizationConfig | None:
    """Return the settings of rounding while loading. Raises ValueError for one without effect."""
    method, group = args.quantization, args.quantization_group_size
    if method is None:
        if group is not None or args.quantize_head:
            name = "quantize_head" if group is None else "quantization_group_size"
            raise ValueError(f"{name} is set without quantization; it takes int8, int4 or fp8")
        return None
    if method == "fp8" and group is not None:
        raise ValueError(f"quantization_group_size is {group}; fp8 has one scale for each output")
    if method == "int4" and group is None:
        group = INT4_GROUP
    return QuantizationConfig(method=method, group_size=group, head=args.quantize_head)


def _lora_config(args: Arguments) -> LoRAConfig | None:
    if not args.enable_lora:
        return None
    in_memory = args.max_loras if args.max_cpu_loras is None else args.max_cpu_loras
    if in_memory < args.max_loras:
        raise ValueError(f"max_cpu_loras is {in_memory}; it must be at least max_loras, {args.max_loras}")
    return LoRAConfig(max_loras=args.max_loras, max_lora_rank=args.max_lora_rank, max_cpu_loras=in_memory)


def _prompt_adapter_config(args: Arguments, *, possible: bool) -> PromptAdapterConfig | None:
    """possible: by the model, which decides where the setting is None."""
    enabled = possible if args.enable_prompt_adapter is None else args.enable_prompt_adapter
    if not enabled:
        return None
    return PromptAdapterConfig(
        max_prompt_adapters=args.max_prompt_adapters, max_prompt_adapter_token=args.max_prompt_adapter_token
    )


def _uses_gpu(args: Arguments) -> bool:
    return args.device == "cuda" or (args.device == "auto" and Path("/dev/nvidiactl").exists())
