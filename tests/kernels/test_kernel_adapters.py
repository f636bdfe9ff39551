"""Adapters of experts on our kernels: greedy output equals that of PEFT's model."""

from pathlib import Path

import pytest
import torch
from adapter_references import MIXTURES, check_outputs, refer_experts
from interpreted import InterpretedPlatform, kernel_platform

from engine_server.core import model_runner


class GroupingPlatform(InterpretedPlatform):
    """Triton's kernels on a CPU that groups the tokens of experts, as a GPU does."""

    asynchronous = True


def test_grouped_experts_give_pefts_output(
    tmp_path: Path, device: torch.device, finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    (architecture,) = (one for one in MIXTURES if one.name == "qwen3-moe")
    reference = refer_experts(architecture, tmp_path)
    platform = kernel_platform(device) if device.type == "cuda" else GroupingPlatform()
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: platform)
    check_outputs(
        reference, finish, enable_lora=True, max_loras=2, max_cpu_loras=3, enforce_eager=True,
        async_scheduling=False,
    )  # fmt: skip
