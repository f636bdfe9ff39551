"""Adapters of experts on our kernels: greedy output equals that of PEFT's model."""

from pathlib import Path

import pytest
import torch
from adapter_references import MIXTURES, check_outputs, refer_all_linear, refer_experts
from interpreted import kernel_platform

from engine_server.core import model_runner
from engine_server.modeling.layers.fused_experts import FusedExperts
from engine_server.modeling.layers.gated_experts import GatedExperts
from engine_server.modeling.layers.grouped_experts import GroupedExperts
from engine_server.modeling.layers.kernel_sets import triton


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
@pytest.mark.parametrize("kind", [FusedExperts, GroupedExperts])
def test_experts_on_a_gpu_give_pefts_output(
    kind: type[GatedExperts], tmp_path: Path, device: torch.device, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    (architecture,) = (one for one in MIXTURES if one.name == "qwen3-moe")
    reference = refer_experts(architecture, tmp_path)
    if device.type == "cpu":  # each step takes seconds in the interpreter
        reference = reference.of_first_prompts(2)
    monkeypatch.setattr(triton, "TRITON", triton.TRITON._replace(experts=(kind,)))
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: kernel_platform(device))
    check_outputs(
        reference, finish, enable_lora=True, max_loras=2, max_cpu_loras=3, enforce_eager=True,
        async_scheduling=False,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
def test_adapters_of_a_router_on_a_gpu_give_pefts_output(
    tmp_path: Path, device: torch.device, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    (architecture,) = (one for one in MIXTURES if one.name == "qwen3-moe")
    reference = refer_all_linear(architecture, tmp_path)
    if device.type == "cpu":  # each step takes seconds in the interpreter
        reference = reference.of_first_prompts(2)
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: kernel_platform(device))
    check_outputs(
        reference, finish, enable_lora=True, max_loras=2, enforce_eager=True, async_scheduling=False
    )
