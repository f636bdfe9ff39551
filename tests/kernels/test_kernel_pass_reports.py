"""The passes' reports for every architecture, with the Triton kernels."""

import pytest
import torch
from architectures import ARCHITECTURES
from interpreted import kernel_platform
from pass_reports import assert_reports_unchanged
from unapplied import assert_left_out_and_named


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
def test_passes_replace_the_recorded_modules(device: torch.device) -> None:
    assert_reports_unchanged(kernel_platform(device), "triton", ARCHITECTURES)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
@pytest.mark.parametrize(
    ("applier", "kind", "named", "architecture"),
    [
        ("fuse_routers", "routers", "MixtralTopKRouter", "mixtral"),
        ("defer_rotations", "deferred", "apply_rotary_pos_emb", "llama"),
    ],
)
def test_replacement_that_the_trial_does_not_apply_is_left_out_and_named(
    applier: str,
    kind: str,
    named: str,
    architecture: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    platform = kernel_platform(device)
    assert_left_out_and_named(applier, kind, named, architecture, platform, monkeypatch, caplog)
