"""Adapters of experts on a GPU: greedy output equals that of PEFT's model on the CPU."""

from pathlib import Path

import pytest
import torch
from adapter_references import MIXTURES, check_outputs, refer_experts
from architectures import Architecture


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("architecture", MIXTURES, ids=lambda architecture: architecture.name)
def test_fused_experts_give_pefts_output(
    gpu: torch.device, architecture: Architecture, eager: bool, tmp_path: Path, finish
) -> None:
    """Of three adapters two have a slot at a time."""
    reference = refer_experts(architecture, tmp_path)
    check_outputs(
        reference,
        finish,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=3,
        enforce_eager=eager,
        kernels="triton",
    )
