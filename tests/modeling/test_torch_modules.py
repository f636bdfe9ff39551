"""The passes over a model on a CPU with plain torch, which must not change its output or unsupported modules."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tiers import tiered
from tiny_models import TINY, run_passes, tiny_model

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.drafting.draft_head import collect_states
from engine_server.modeling.layers.gated_mlp import GatedMLP
from engine_server.modeling.layers.kernel_sets.plain import CPU, silu_and_mul
from engine_server.modeling.layers.norm import FusedRMSNorm
from engine_server.modeling.layers.rotation import ChosenRotation
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers

# The numbers of norms, gates and rotations that are replaced in two layers.
CASES = {
    "LlamaForCausalLM": (5, 2, 2),
    "Qwen3ForCausalLM": (9, 2, 2),  # queries and keys have norms
    "Gemma2ForCausalLM": (0, 0, 2),  # weights around 0, gelu
    "GlmForCausalLM": (5, 0, 0),  # gate and up in one projection, rotation of half of the dims in pairs
}


def replaced(model: torch.nn.Module) -> tuple[int, int, int]:
    norms = gates = ropes = 0
    for module in model.modules():
        norms += isinstance(module, FusedRMSNorm)
        gates += isinstance(module, GatedMLP) and vars(module).get("_apply_gate") is silu_and_mul
        rope = type(module).forward.__globals__.get("apply_rotary_pos_emb")
        ropes += isinstance(rope, ChosenRotation) and rope.chosen not in (None, rope.original)
    return norms, gates, ropes


@pytest.mark.parametrize(("name", "parts"), tiered(CASES.items(), *[*CASES.items()][:2], more=CASES.items()))
def test_replaced_modules_compute_the_same_as_those_of_transformers(
    name: str, parts: tuple[int, int, int]
) -> None:
    cpu = torch.device("cpu")
    for dtype, slack in ((torch.float32, 1e-4), (torch.bfloat16, 0.15)):
        model = tiny_model(name, **TINY, vocab_size=64, head_dim=8, pad_token_id=0).to(dtype)
        before = [run(model, Probe(), np.arange(count), cpu, {}) for count in (3, 9)]
        run_passes(model, CpuPlatform())
        after = [run(model, Probe(), np.arange(count), cpu, {}) for count in (3, 9)]
        assert replaced(model) == parts
        for one, other in zip(before, after, strict=True):  # of one step and the next, at other angles
            torch.testing.assert_close(other, one, atol=slack * one.std().item(), rtol=slack)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "GlmForCausalLM"])
def test_outputs_of_decoder_layers_stay_whole_sums_although_the_next_norm_adds(name: str) -> None:
    """Draft heads take them as the target's states."""
    cpu, model = torch.device("cpu"), tiny_model(name, **TINY, vocab_size=64, head_dim=8, pad_token_id=0)
    layers = range(model.config.num_hidden_layers)
    with collect_states(model, layers) as expected:
        run(model, Probe(), np.arange(9), cpu, {})
    run_passes(model, CpuPlatform())
    with collect_states(model, layers) as states:
        run(model, Probe(), np.arange(9), cpu, {})
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-4)


def test_norm_adds_the_last_residual_of_each_fused_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("LlamaForCausalLM", **TINY, vocab_size=64, head_dim=8, pad_token_id=0)
    run_passes(model, CpuPlatform())
    added: list[FusedRMSNorm] = []
    add_ahead = FusedRMSNorm.add_ahead
    for layer in model.model.layers:
        norm = layer.add_residual.__self__
        layer.add_residual = lambda *given, norm=norm: added.append(norm) or add_ahead(norm, *given)
    computed: list[FusedRMSNorm] = []
    add = FusedRMSNorm.add
    monkeypatch.setattr(FusedRMSNorm, "add", lambda norm, *given: computed.append(norm) or add(norm, *given))
    run(model, Probe(), np.arange(3), torch.device("cpu"), {})
    first, second = model.model.layers
    assert added == [second.input_layernorm, model.model.norm]
    attended = [first.post_attention_layernorm, second.post_attention_layernorm]
    assert computed == [first.input_layernorm, attended[0], added[0], attended[1], added[1]]


def test_norm_of_another_tensor_than_the_sum_is_computed() -> None:
    norm = FusedRMSNorm(CPU, torch.nn.Parameter(torch.rand(8), False), 1e-5, 0.0)
    x, residual, other = torch.randn(3, 1, 2, 8)
    total = norm.add_ahead(x, residual)
    for given in (other, total):
        torch.testing.assert_close(norm(given), norm.add(given)[1], rtol=0, atol=0)


@pytest.mark.more
@pytest.mark.parametrize("name", tiered(CASES, [*CASES][-1], more=CASES))
def test_replaced_modules_are_freed_with_their_model_without_garbage_collection(name: str) -> None:
    """The core freezes the garbage collector after its start, so a cycle would never be freed."""
    model = tiny_model(name, **TINY, vocab_size=64, head_dim=8, pad_token_id=0)
    run_passes(model, CpuPlatform())
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
def test_engine_serves_with_replaced_modules_where_no_native_kernels_load(
    tiny_llama: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "obstacle", lambda: "there are none")
    engine = LLMEngine.from_engine_args(
        EngineArgs(model=str(tiny_llama), dtype=dtype, skip_tokenizer_init=True, num_gpu_blocks_override=16)
    )
    assert replaced(engine._core.executor.first.model) == CASES["LlamaForCausalLM"]
