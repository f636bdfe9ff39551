"""The engine's arguments: one definition for Python callers and for the command line's flags."""

import argparse
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, Self

import msgspec

from engine_server.config import EngineConfig, LogprobsMode, UsageContext
from engine_server.engine.arguments.flags import (
    add_flags,
    context_length,
    full_dtype,
    json_object,
    parse_size,
)
from engine_server.requests.sampling_params import MAX_LOGPROBS

__all__ = ["AsyncEngineArgs", "EngineArgs", "parse_size"]

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def _argument(default: Any, text: str, **options: Any) -> Any:
    """Return a dataclass field that is also a command-line flag, parsed by its type. `options` go to argparse."""
    return field(default=default, metadata={"help": text, "options": options})


def _unsupported(default: Any, **options: Any) -> Any:
    """Return a field for a parameter of vLLM that has no effect here: it takes vLLM's default only, and has no help."""
    return _argument(default, argparse.SUPPRESS, **options)


@dataclass(kw_only=True)
class EngineArgs:
    """The arguments of an engine, with vLLM's names and defaults where the meaning is the same."""

    model: str = _argument("", "a folder, a .gguf file, org/name, hf://org/name[@revision] or pypi://package")
    revision: str | None = _argument(
        None, "branch, tag or commit of a model on the hub (default: its main branch)"
    )
    hf_overrides: dict[str, Any] | None = _argument(
        None, "settings to replace in the model's config.json, as a JSON object", type=json_object
    )
    trust_remote_code: bool = _argument(
        False, "run Python code that the model's folder brings; takes a model in a local folder"
    )
    tokenizer: str | None = _argument(None, "a folder or a hub's name (default: the model's own)")
    skip_tokenizer_init: bool = _argument(False, "accept and return token ids only")
    enable_prompt_embeds: bool = _argument(False, "take embeddings in place of a prompt's tokens")
    runner: Literal["auto", "generate", "pooling"] = _argument(
        "auto", "generate text, or pool to vectors and scores; auto: the model's own task"
    )
    served_model_name: list[str] | str | None = _argument(
        None, "the model's names in the API; may be repeated (default: the model as given)", metavar="NAME"
    )
    generation_config: str = _argument(
        "auto",
        "default sampling parameters: auto: from the model's generation_config.json; vllm: none; or a folder with "
        "such a file",
    )
    logits_processors: list[str] | None = _argument(
        None,
        "package.module:callable, which requests may name: called with the prompt's and the output's token ids and "
        "the logits [vocabulary], it returns the logits; may be repeated",
        metavar="NAME",
    )
    max_logprobs: Annotated[int, msgspec.Meta(ge=-1)] = _argument(
        MAX_LOGPROBS,
        "the most log-probabilities a request may ask for at a position; -1: the whole vocabulary",
    )
    logprobs_mode: LogprobsMode = _argument(
        "raw_logprobs",
        "log-probabilities or logits, before (raw) or after (processed) penalties and temperature",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = _argument(
        "auto", "the weights' type; auto: unchanged", type=full_dtype
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = _argument(
        "auto", "weights to load; auto: safetensors or gguf, whichever is there; dummy: random weights"
    )
    seed: Int64 | None = _argument(0, "the seed from which requests without one draw theirs (None: 0)")
    batch_invariant: bool = _argument(
        False, "on a GPU, make results bitwise independent of batch composition; slower"
    )
    max_model_len: Annotated[int, msgspec.Meta(ge=-1)] | None = _argument(
        None, "the longest prompt and output together, in tokens; -1: the longest that the KV cache holds",
        type=context_length,
    )  # fmt: skip
    block_size: Count | None = _argument(16, "tokens per block of the KV cache (None: 16)")
    gpu_memory_utilization: Share = _argument(0.9, "the share of a GPU's memory to use")
    kv_cache_memory_bytes: Count | None = _argument(
        None, "the KV cache's size, as 512MiB or 4GiB (default: from free memory)", type=parse_size
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = _argument(
        "auto",
        "the KV cache's type; fp8: half the bytes, with computed scales; auto: the type that the model computes in",
    )
    num_gpu_blocks_override: Count | None = _argument(
        None, "the number of blocks, regardless of the free memory"
    )
    enable_prefix_caching: bool = _argument(
        True, "share KV-cache blocks between requests with equal prefixes"
    )
    prefix_caching_hash_algo: Literal["sha256"] = _argument("sha256", "the hash that identifies equal blocks")
    max_num_batched_tokens: Count | None = _argument(
        None, "token budget of a step (default: 8192 on a GPU; on a CPU, what takes at most about 300 ms)"
    )
    max_num_seqs: Count | None = _argument(256, "the maximum number of running requests (None: 256)")
    max_queue: Amount | None = _argument(
        None, "the maximum number of waiting requests; more are refused (default: any number)"
    )
    scheduling_policy: Literal["fcfs", "priority"] = _argument(
        "fcfs", "the order in which requests run: by arrival, or by priority and then arrival"
    )
    enable_chunked_prefill: bool = _argument(
        True, "compute long prompts in chunks, in steps shared with other requests"
    )
    max_num_partial_prefills: Amount = _argument(
        0, "prompts that may be partially computed at the same time; 0: any number"
    )
    long_prefill_token_threshold: Amount = _argument(
        0, "the maximum number of tokens of one prompt in a step; 0: no limit"
    )
    enforce_eager: bool = _argument(
        False, "launch every kernel from the host: no CUDA graphs of decode steps"
    )
    async_scheduling: bool | None = _argument(
        None, "prepare a step while the device computes the one before (default: on a GPU)"
    )
    device: Literal["auto", "cpu", "cuda"] = _argument(
        "auto", "the device that runs the model; auto: a GPU if there is one"
    )
    tensor_parallel_size: Count = _argument(1, "GPUs that share the model; on a CPU, processes")
    disable_log_stats: bool = _argument(False, "no line of statistics every 10 seconds")
    hang_timeout: Seconds = _argument(300.0, "seconds without progress after which the engine is unhealthy")
    torch_profiler_dir: str | None = _argument(None, "the folder for traces of start_profile")
    otlp_traces_endpoint: str | None = _argument(
        None, "the URL that receives spans of requests with trace headers, as http://collector:4318/v1/traces"
    )
    tokenizer_mode: Literal["auto"] = _unsupported("auto")
    convert: Literal["auto"] = _unsupported("auto")
    compilation_config: None = _unsupported(None)
    attention_config: None = _unsupported(None)
    quantization: None = _unsupported(None)
    # Ranks always run as processes on this machine.
    distributed_executor_backend: Literal["mp"] | None = _unsupported(None)
    # GiB; 4 is vLLM's default. No block is ever swapped.
    swap_space: Literal[0, 4] | None = _unsupported(None)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each field to `parser`; `model` is positional and may be left out."""
        return add_flags(parser, cls)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Make arguments from the namespace of a parser with `add_cli_args`."""
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls)})

    def create_engine_config(self, usage_context: UsageContext | None = None) -> EngineConfig:
        """Resolve the model and every default. Raises ValueError, which names the argument.

        usage_context: accepted as in vLLM; no default depends on it.
        """
        from engine_server.engine.arguments.resolution import resolve_config

        return resolve_config(self)


@dataclass(kw_only=True)
class AsyncEngineArgs(EngineArgs):
    """EngineArgs for the asynchronous engine."""

    enable_log_requests: bool = _argument(False, "log each request that is added or finished")
