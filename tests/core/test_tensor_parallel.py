"""Tensor parallelism over two processes: the output of one process, and a common end."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from adapters import save_lora
from speculating_engines import draft_always, overlap_at_random
from step_counts import Counts
from transformers import LlamaForCausalLM
from waiting import until

from engine_server import (
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    EngineDeadError,
    LLMEngine,
    LoRARequest,
    SamplingParams,
)
from engine_server.core.distributed.runner_calls import decode_array, encode_array
from engine_server.core.distributed.worker import MODULE

PROMPTS = {"a": [5, 9, 17], "b": [40] * 21, "c": [2, 3, 5, 7, 11, 13]}


def options(folder: Path, ranks: int) -> dict[str, Any]:
    return {
        "model": str(folder), "dtype": "float32", "skip_tokenizer_init": True, "num_gpu_blocks_override": 64,
        "max_num_batched_tokens": 16, "disable_log_stats": True, "tensor_parallel_size": ranks, "device": "cpu",
    }  # fmt: skip


def answers(engine: LLMEngine, finish, params: SamplingParams, **adapter: Any) -> dict[str, Any]:
    for name, prompt in PROMPTS.items():
        engine.add_request(name, {"prompt_token_ids": prompt}, params, **adapter)
    outputs = finish(engine)
    return {name: (one.outputs[0].token_ids, one.prompt_logprobs) for name, one in outputs.items()}


def without_values(answers: dict[str, Any]) -> dict[str, Any]:
    """Return the output tokens and the ids in the prompts' log-probabilities, whose values differ by rounding."""
    return {name: (tokens, [*map(list, logprobs[1:])]) for name, (tokens, logprobs) in answers.items()}


def is_worker(child: psutil.Process) -> bool:
    """Tell a rank's process from the children of other tests, of which some have ended and are not reaped yet."""
    try:
        return MODULE in child.cmdline()
    except psutil.ZombieProcess:
        return False


@pytest.mark.usefixtures("foreign_folder")  # ranks import nothing from it
def test_two_ranks_give_the_output_of_one(
    tiny_llama: Path, tmp_path: Path, finish, tiny_params, caplog
) -> None:
    """Two ranks also draft together, and share an adapter."""
    caplog.set_level(logging.INFO)  # records are kept, and hold nothing of an engine that ends
    model = LlamaForCausalLM.from_pretrained(tiny_llama)
    lora = LoRARequest("lora", 1, str(save_lora(model, tmp_path, 1, target_modules="all-linear")))
    one = LLMEngine.from_engine_args(EngineArgs(**options(tiny_llama, 1), enable_lora=True))
    drafts, counts = {"model": str(tiny_llama), "num_speculative_tokens": 3}, Counts()
    arguments = EngineArgs(
        **options(tiny_llama, 2) | {"disable_log_stats": False}, enable_lora=True, speculative_config=drafts,
        async_scheduling=True,
    )  # fmt: skip
    two = LLMEngine.from_engine_args(arguments, stat_loggers={"counts": counts})
    draft_always(two)
    overlap_at_random(two)
    greedy = tiny_params(temperature=0.0, max_tokens=12, ignore_eos=True, prompt_logprobs=1)
    expected = without_values(answers(one, finish, greedy))
    assert without_values(answers(two, finish, greedy)) == expected
    assert counts.accepted > 0
    adapted = without_values(answers(one, finish, greedy, lora_request=lora))
    assert without_values(answers(two, finish, greedy, lora_request=lora)) == adapted != expected
    assert two.collective_rpc("erase", args=([[]],)) == [None, None]
    with pytest.raises(RuntimeError, match=r"rank 0: AttributeError: .*; rank 1: AttributeError"):
        two.collective_rpc("unknown_method")
    two.sleep(level=2)
    two.wake_up()
    assert without_values(answers(two, finish, greedy)) == expected
    (worker,) = (child for child in psutil.Process().children() if is_worker(child))
    del two
    gc.collect()
    until(lambda: not worker.is_running())


@pytest.mark.thorough
@pytest.mark.asyncio
async def test_killed_worker_ends_the_engine_with_its_signal_as_reason(tiny_llama: Path, tiny_params) -> None:
    engine = await asyncio.to_thread(AsyncLLM.from_engine_args, AsyncEngineArgs(**options(tiny_llama, 2)))
    core = psutil.Process(engine.core_pid)
    (worker,) = core.children()
    endless = tiny_params(max_tokens=250, ignore_eos=True)
    with pytest.raises(EngineDeadError, match=f"rank 1 .process {worker.pid}. was ended by SIGKILL"):
        async for _ in engine.generate({"prompt_token_ids": [3]}, endless, "a"):
            worker.kill()
    until(lambda: not core.is_running())
    engine.shutdown()


@pytest.mark.parametrize("array", [np.zeros(0), np.arange(6).reshape(2, 3).T, np.broadcast_to(7, (1,))])
def test_array_survives_encoding_for_other_ranks(array: np.ndarray) -> None:
    decoded = decode_array(np.ndarray, encode_array(array))
    np.testing.assert_array_equal(decoded, array, strict=True)
    assert decoded.flags.writeable  # as torch.from_numpy requires


def test_error_for_too_few_gpus_names_both_numbers(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="tensor_parallel_size is 2 GPUs, and torch sees 1 of them"):
        LLMEngine.from_engine_args(EngineArgs(**options(tiny_llama, 2) | {"device": "cuda"}))
