"""Steps that run out of GPU memory, and GPUs that fail."""

import os
from pathlib import Path

import pytest
import torch

from engine_server import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    EngineDeadError,
    LLMEngine,
    SamplingParams,
)

MIB = 1 << 20


def test_step_that_runs_out_of_memory_is_retried_in_smaller_steps(
    gpu: torch.device, llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(llama), load_format="dummy", skip_tokenizer_init=True, kernels="triton",
            max_num_batched_tokens=4096, kv_cache_memory_bytes=512 * MIB, disable_log_stats=True,
        )
    )  # fmt: skip
    prompt = {"prompt_token_ids": [place % 1000 + 3 for place in range(4000)]}
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(gpu).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 48 * MIB) / total)
        engine.add_request("0", prompt, SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False))
        while engine.has_unfinished_requests():
            outputs = engine.step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert outputs[0].outputs[0].finish_reason == "length"
    assert "a step of 4000 tokens ran out of memory" in caplog.text


LOST = """
import torch
from engine_server.core.model_runner import ModelRunner

class LostRunner(ModelRunner):
    def forward(self, inputs):
        torch.zeros(4, device=self.device)[torch.tensor([1 << 40], device=self.device)]
        return super().forward(inputs)
"""


async def test_engine_ends_when_its_gpu_fails(
    gpu: torch.device, llama: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "lost_gpu.py").write_text(LOST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    from lost_gpu import LostRunner

    config = AsyncEngineArgs(
        model=str(llama),
        load_format="dummy",
        skip_tokenizer_init=True,
        kernels="triton",
        kv_cache_memory_bytes=512 * MIB,
    ).create_engine_config()
    engine = AsyncLLMEngine(config, LostRunner, log_stats=False)
    with pytest.raises(EngineDeadError, match="CUDA error"):
        async for _ in engine.generate({"prompt_token_ids": [5]}, SamplingParams(detokenize=False), "0"):
            pass
    with pytest.raises(EngineDeadError, match="ended with status"):
        await engine.check_health()
