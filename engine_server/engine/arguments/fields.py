"""Fields of the engine's arguments: one definition for Python callers and for the command line's flags."""

import argparse
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import msgspec

from engine_server.config import LogprobsMode
from engine_server.config.quantization import Quantization
from engine_server.config.scheduler import SCHEDULING_POLICIES, SchedulingPolicy
from engine_server.contract.base.bounds import PICTURES
from engine_server.contract.cluster.model_uri import EXAMPLES
from engine_server.engine.arguments.flags import (
    compilation,
    context_length,
    full_dtype,
    json_object,
    parse_size,
    word_list,
)
from engine_server.requests.sampling_params import MAX_LOGPROBS

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


def argument(default: Any, text: str, *, secret: bool = False, **options: Any) -> Any:
    """Return a dataclass field that is also a command-line flag, parsed by its type. `options` go to argparse.

    secret: leave the value out of the object's repr.
    """
    metadata = {"help": text, "options": options}
    if isinstance(default, list):
        return field(default_factory=default.copy, repr=not secret, metadata=metadata)
    return field(default=default, repr=not secret, metadata=metadata)


def _without_effect(default: Any, **options: Any) -> Any:
    """Return a field for a parameter of vLLM that has no effect here, and so no help."""
    return argument(default, argparse.SUPPRESS, **options)


# Each class is a group of `--help`, under the first line of its docstring.


@dataclass(kw_only=True)
class ModelArguments:
    """Model and tokenizer."""

    model: str = argument("", f"a folder, a .gguf file, {EXAMPLES}")
    revision: str | None = argument(
        None, "branch, tag or commit of a model on the hub (default: its main branch)"
    )
    hf_overrides: dict[str, Any] | None = argument(
        None, "settings to replace in the model's config.json, as a JSON object", type=json_object
    )
    trust_remote_code: bool = argument(
        False, "run Python code that the model's folder brings; takes a model in a local folder"
    )
    tokenizer: str | None = argument(None, "a folder or a hub's name (default: the model's own)")
    skip_tokenizer_init: bool = argument(False, "accept and return token ids only")
    tokenizer_cache_bytes: Amount = argument(
        64 << 20,
        "memory for the tokens of parts of prompts, which are not tokenized again when they return, as 64MiB; 0: none",
        type=parse_size,
    )
    enable_prompt_embeds: bool = argument(False, "take embeddings in place of a prompt's tokens")
    language_model_only: bool = argument(False, "take no pictures, and load no encoder of them")
    limit_mm_per_prompt: dict[str, Any] | None = argument(
        None,
        f'the most pictures in a request, as {{"image": 8}} (default: {PICTURES.limit})',
        type=json_object,
        metavar="JSON",
    )
    mm_processor_kwargs: dict[str, Any] | None = argument(
        None,
        'settings of the model\'s processor of pictures: its own "size" in pixels',
        type=json_object,
        metavar="JSON",
    )
    runner: Literal["auto", "generate", "pooling"] = argument(
        "auto", "generate text, or pool to vectors and scores; auto: the model's own task"
    )
    score_tokens: list[str] | None = argument(
        None,
        "a negative and a positive answer, as no,yes: the model scores pairs of texts by their logits after the "
        "prompt; one alone: by its logit (default: those that the model's files name)",
        type=word_list,
        metavar="WORDS",
        action="store",
        nargs=None,
    )
    served_model_name: list[str] | str | None = argument(
        None, "the model's names in the API; may be repeated (default: the model as given)", metavar="NAME"
    )


@dataclass(kw_only=True)
class SamplingArguments:
    """Sampling."""

    generation_config: str = argument(
        "auto",
        "default sampling parameters: auto: from the model's generation_config.json; vllm: none; or a folder with "
        "such a file",
    )
    override_generation_config: dict[str, Any] | None = argument(
        None,
        'settings to replace in generation_config, as {"temperature": 0.5}; with vllm these alone are the defaults; '
        "eos_token_id, a token's id or a list, replaces all ends of answers, the tokenizer's too",
        type=json_object,
        metavar="JSON",
    )
    logits_processors: list[str] | None = argument(
        None,
        "package.module:callable, which requests may name: called with the prompt's and the output's token ids and "
        "the logits [vocabulary], it returns the logits; may be repeated",
        metavar="NAME",
    )
    max_logprobs: Annotated[int, msgspec.Meta(ge=-1)] = argument(
        MAX_LOGPROBS,
        "the most log-probabilities a request may ask for at a position; -1: the whole vocabulary",
    )
    logprobs_mode: LogprobsMode = argument(
        "raw_logprobs",
        "log-probabilities or logits, before (raw) or after (processed) penalties and temperature",
    )


@dataclass(kw_only=True)
class WeightArguments:
    """Weights."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = argument(
        "auto", "the weights' type; auto: unchanged", type=full_dtype
    )
    load_format: Literal["auto", "safetensors", "gguf", "dequantized", "dummy"] = argument(
        "auto",
        "weights to load; auto: safetensors or gguf, whichever is there; dequantized: the same, with quantized weights "
        "made dense; dummy: random weights",
    )
    quantization: Quantization | None = argument(
        None,
        "round the weights of linear layers to fewer bits while loading (default: the checkpoint's own form)",
    )
    quantization_group_size: Count | None = argument(
        None, "inputs that share a scale (default: 64 with int4; all inputs of an output with int8)"
    )
    quantize_head: bool = argument(False, "with quantization, round the embedding and the head to int8")
    seed: Int64 | None = argument(0, "the seed from which requests without one draw theirs")


@dataclass(kw_only=True)
class ExecutionArguments:
    """Execution."""

    batch_invariant: bool | None = argument(
        None,
        "make results bitwise independent of batch composition (default: where that costs nothing, as in float32 and "
        "bfloat16 on CPUs)",
    )
    enforce_eager: bool = argument(False, "launch every kernel from the host: no CUDA graphs of decode steps")
    async_scheduling: bool | None = argument(
        None, "prepare a step while the device computes the one before (default: on a GPU)"
    )
    device: Literal["auto", "cpu", "cuda"] = argument(
        "auto", "the device that runs the model; auto: a GPU if there is one"
    )
    kernels: Literal["auto", "triton"] = argument(
        "auto",
        "what computes on a GPU; auto: kernels in Triton, or plain torch, which is slower, where Triton doesn't work; "
        "triton: kernels in Triton, or no start",
    )
    tensor_parallel_size: Count = argument(1, "GPUs that share the model; on a CPU, processes")


@dataclass(kw_only=True)
class CacheArguments:
    """Context and KV cache."""

    max_model_len: Annotated[int, msgspec.Meta(ge=-1)] | None = argument(
        None, "the longest prompt and output together, in tokens; -1: the longest that the KV cache holds "
        "(default: the model's limit)",
        type=context_length,
    )  # fmt: skip
    block_size: Count | None = argument(16, "tokens per block of the KV cache")
    gpu_memory_utilization: Share = argument(0.9, "the share of a GPU's memory to use")
    kv_cache_memory_bytes: Count | None = argument(
        None, "the KV cache's size, as 512MiB or 4GiB (default: from free memory)", type=parse_size
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = argument(
        "auto",
        "the KV cache's type; fp8, int8: half the bytes, with computed scales (int8: on a CPU); auto: the type that "
        "the model computes in",
    )
    num_gpu_blocks_override: Count | None = argument(
        None, "the number of blocks of full attention, regardless of the free memory"
    )
    num_state_slots: Count | None = argument(
        None,
        "the number of states of a model's recurrent layers: one for each running request and one for each prefix that "
        "stays cached (default: 4 times max_num_seqs, in at most half of the cache's memory)",
    )
    enable_prefix_caching: bool = argument(True, "share KV-cache blocks between requests with equal prefixes")


@dataclass(kw_only=True)
class AdapterArguments:
    """Adapters."""

    enable_lora: bool = argument(False, "serve LoRA adapters")
    max_loras: Count = argument(
        1, "the maximum number of different LoRA adapters in a step, in the device's memory"
    )
    max_lora_rank: Count = argument(16, "the largest rank of a LoRA adapter")
    max_cpu_loras: Count | None = argument(
        None, "the maximum number of LoRA adapters in the host's memory (default: max_loras)"
    )
    enable_prompt_adapter: bool | None = argument(
        False, "serve prompt adapters: prompt tuning and p-tuning (None: unless the model pools)"
    )
    max_prompt_adapters: Count = argument(
        1, "the maximum number of prompt adapters in memory, and so of different ones in a step"
    )
    max_prompt_adapter_token: Count = argument(
        128, "the largest number of virtual tokens of a prompt adapter"
    )


@dataclass(kw_only=True)
class SchedulerArguments:
    """Scheduling."""

    max_num_batched_tokens: Count | None = argument(
        None, "token budget of a step (default: 8192 on a GPU, 2048 on a CPU)"
    )
    max_num_seqs: Count | None = argument(256, "the maximum number of running requests")
    max_queue: Amount | None = argument(
        None,
        "the maximum number of waiting completions, each prompt and each choice of n being one; more are refused "
        "(default: any number; in the server 8 times max_num_seqs, and at least 2048)",
    )
    scheduling_policy: SchedulingPolicy = argument(
        "fcfs",
        "the order in which requests run: "
        + ", or ".join(SCHEDULING_POLICIES[policy].order for policy in get_args(SchedulingPolicy)),
    )
    enable_chunked_prefill: bool = argument(
        True, "compute long prompts in chunks, in steps shared with other requests"
    )
    max_step_ms: Milliseconds | None = argument(
        None,
        "the longest time, in milliseconds, of a step in which prompts join the tokens of other requests; with prompts "
        "alone it may take twice as long; their chunks are as long as the measured speed allows; 0: no limit "
        "(default: 150 on a CPU without max_num_batched_tokens, else 0)",
    )
    max_num_partial_prefills: Amount = argument(
        0, "prompts that may be partially computed at the same time; 0: any number"
    )
    long_prefill_token_threshold: Amount = argument(
        0, "the maximum number of tokens of one prompt in a step; 0: no limit"
    )


@dataclass(kw_only=True)
class SpeculationArguments:
    """Speculative decoding."""

    speculative_config: dict[str, Any] | None = argument(
        None,
        'the source of draft tokens that the model verifies, as {"method": "ngram"}, or {"model": NAME} of a smaller '
        'model with the same vocabulary, {"method": "eagle3", "model": NAME} of a head, or {"method": "mtp"} of the '
        "model's own prediction module; num_speculative_tokens: the most drafts of a request in a step (else 8); "
        "prompt_lookup_min, prompt_lookup_max: of ngram, the tokens that must have occurred before (else 3 to 5)",
        type=json_object,
        metavar="JSON",
    )


@dataclass(kw_only=True)
class ObservabilityArguments:
    """Statistics, health and traces."""

    disable_log_stats: bool = argument(False, "no line of statistics every 10 seconds")
    hang_timeout: Seconds = argument(300.0, "seconds without progress after which the engine is unhealthy")
    torch_profiler_dir: str | None = argument(None, "the folder for traces of start_profile")
    otlp_traces_endpoint: str | None = argument(
        None, "the URL that receives spans of requests with trace headers, as http://collector:4318/v1/traces"
    )


@dataclass(kw_only=True)
class UnsupportedArguments:
    """Parameters of vLLM that take its default only."""

    tokenizer_mode: Literal["auto"] = _without_effect("auto")
    convert: Literal["auto"] = _without_effect("auto")
    attention_config: None = _without_effect(None)
    # GiB; 4 is vLLM's default. No block is ever swapped.
    swap_space: Literal[0, 4] | None = _without_effect(None)


@dataclass(kw_only=True)
class SpeedArguments:
    """Parameters of vLLM that would change its speed alone: they are accepted with a warning."""

    compilation_config: Amount | dict[str, Any] | None = _without_effect(None, type=compilation)
    # Several ranks run as processes on this machine, one in the engine's process; "uni" takes one.
    distributed_executor_backend: Literal["mp", "uni"] | None = _without_effect(None)
    # Blocks are always identified by sha256.
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor", "builtin"] = (
        _without_effect("sha256")
    )


@dataclass(kw_only=True)
class Arguments(
    ModelArguments,
    WeightArguments,
    CacheArguments,
    SchedulerArguments,
    AdapterArguments,
    SpeculationArguments,
    ExecutionArguments,
    SamplingArguments,
    ObservabilityArguments,
    UnsupportedArguments,
    SpeedArguments,
):
    """The fields of EngineArgs, which it resolves to an EngineConfig."""
