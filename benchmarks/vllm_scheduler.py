"""vLLM's scheduler without a model, run by an interpreter that has vLLM; this project needn't be importable.

Reads lines of JSON with a number of requests and of steps; answers each with the median microseconds of `schedule` and
of `update_from_output` in a decode step. Arguments: tokens of a context, longest context, block size, budget.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

CONTEXT, LONGEST, BLOCK_SIZE, BUDGET = map(int, sys.argv[1:])
VOCABULARY, TOKEN = 32_000, 7
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip


def make(folder: str, rows: int) -> Scheduler:
    """Return a scheduler for a number of running requests."""
    num_blocks = (rows + 1) * LONGEST // BLOCK_SIZE
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=ModelConfig(model=folder, max_model_len=LONGEST, skip_tokenizer_init=True),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=BUDGET, max_num_seqs=rows, max_model_len=LONGEST,
            enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=False,
        ),
    )  # fmt: skip
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=4, head_size=16, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(config, kv_cache, StructuredOutputManager(config), BLOCK_SIZE, log_stats=True)


def measure(scheduler: Scheduler, rows: int, steps: int) -> dict[str, float]:
    """Compute the prompts of as many requests, then time their decode steps."""
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    names = [f"{time.monotonic_ns()}-{index}" for index in range(rows)]
    for name in names:
        draw = random.Random(name)
        prompt = [draw.randrange(VOCABULARY) for _ in range(CONTEXT)]
        params = SamplingParams(max_tokens=LONGEST - CONTEXT, seed=1)
        params.update_from_generation_config({}, 2)
        scheduler.add_request(Request(name, prompt, params, None, block_hasher=hasher))
    number = 0
    while number < rows:
        number = sum(len(one.outputs) for one in step(scheduler)[2].values())
    times = [step(scheduler)[:2] for _ in range(steps)]
    scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
    scheduler.schedule()
    schedule, update = (1e6 * median(values) for values in zip(*times, strict=True))
    return {"schedule": schedule, "update": update}


def step(scheduler: Scheduler) -> tuple[float, float, dict[int, Any]]:
    """Run a step; return the seconds of both calls, and its outputs."""
    started = time.perf_counter()
    scheduled = scheduler.schedule()
    seconds = time.perf_counter() - started
    names = list(scheduled.num_scheduled_tokens)
    sampled = [
        [TOKEN] if scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens else []
        for name in names
    ]
    output = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
    started = time.perf_counter()
    outputs = scheduler.update_from_output(scheduled, output)
    return seconds, time.perf_counter() - started, outputs


def main() -> None:
    init_none_hash(sha256)
    schedulers: dict[int, Scheduler] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            asked = json.loads(line)
            rows = asked["rows"]
            if rows not in schedulers:
                schedulers[rows] = make(folder, rows)
            print(json.dumps(measure(schedulers[rows], rows, asked["steps"])), flush=True)


if __name__ == "__main__":
    main()
