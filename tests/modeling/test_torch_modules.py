"""Modules that run in fewer passes on a CPU compute what they did, and others are left alone."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import TINY, fused

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.layers.fused_modules import FusedRMSNorm, Rope, use_kernels
from engine_server.modeling.layers.torch_modules import CPU, silu_and_mul
from engine_server.modeling.loading.fusion import GatedMLP
from engine_server.modeling.loading.probe import Probe, run
from engine_server.modeling.native import library

CASES = {  # how many of two layers' norms, gates and ropes are swapped
    "LlamaForCausalLM": (5, 2, 2),
    "Qwen3ForCausalLM": (9, 2, 2),  # queries and keys have norms
    "Gemma2ForCausalLM": (0, 0, 2),  # weights around 0, gelu
    "GlmForCausalLM": (5, 0, 0),  # gate and up in one, dims in pairs, half of them turned
}


def swapped(model: torch.nn.Module) -> tuple[int, int, int]:
    norms = gates = ropes = 0
    for module in model.modules():
        norms += isinstance(module, FusedRMSNorm)
        gates += isinstance(module, GatedMLP) and vars(module).get("_apply_gate") is silu_and_mul
        rope = type(module).forward.__globals__.get("apply_rotary_pos_emb")
        ropes += isinstance(rope, Rope) and rope.chosen is not rope.original
    return norms, gates, ropes


@pytest.mark.parametrize(("name", "parts"), CASES.items())
def test_they_compute_the_same(name: str, parts: tuple[int, int, int]) -> None:
    cpu = torch.device("cpu")
    for dtype, slack in ((torch.float32, 1e-4), (torch.bfloat16, 0.15)):
        model = fused(name, **TINY, vocab_size=64, head_dim=8, pad_token_id=0).to(dtype)
        before = [run(model, Probe(), np.arange(count), cpu, {}) for count in (3, 9)]
        use_kernels(model, CPU)
        after = [run(model, Probe(), np.arange(count), cpu, {}) for count in (3, 9)]
        assert swapped(model) == parts
        for one, other in zip(before, after, strict=True):  # of one step and the next, at other angles
            torch.testing.assert_close(other, one, atol=slack * one.std().item(), rtol=slack)


@pytest.mark.parametrize("name", CASES)
def test_they_leave_memory_with_their_model(name: str) -> None:
    """Without the garbage collector, which the core has told to look at none of this."""
    model = fused(name, **TINY, vocab_size=64, head_dim=8, pad_token_id=0)
    use_kernels(model, CPU)
    run(model, Probe(), np.arange(3), torch.device("cpu"), {})
    parts = {name: weakref.ref(part) for name, part in model.named_modules()}
    gc.collect()
    gc.disable()
    try:
        del model
        assert [name for name, part in parts.items() if part() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_serve(tiny_llama: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "can_run", lambda: False)
    engine = LLMEngine.from_engine_args(
        EngineArgs(model=str(tiny_llama), dtype=dtype, skip_tokenizer_init=True, num_gpu_blocks_override=16)
    )
    assert swapped(engine._core.executor.runner.model) == CASES["LlamaForCausalLM"]
