"""The passes' reports for every architecture, with the Triton kernels."""

import pytest
import torch
from architectures import ARCHITECTURES
from interpreted import kernel_platform
from pass_reports import assert_reports_unchanged
from unapplied import assert_left_out_and_named

from engine_server.modeling.replacements.replacement import Replacement
from engine_server.modeling.replacements.rotations import DEFERRED_ROTATIONS
from engine_server.modeling.replacements.routers import ROUTERS


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
def test_passes_replace_the_recorded_modules(device: torch.device) -> None:
    assert_reports_unchanged(kernel_platform(device), "triton", ARCHITECTURES)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
@pytest.mark.parametrize(
    ("kind", "named", "architecture"),
    [
        (ROUTERS, "MixtralTopKRouter", "mixtral"),
        (DEFERRED_ROTATIONS, "apply_rotary_pos_emb", "llama"),
    ],
)
def test_replacement_that_is_not_applied_is_left_out_and_named(
    kind: Replacement,
    named: str,
    architecture: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    platform = kernel_platform(device)
    assert_left_out_and_named(kind, named, architecture, platform, monkeypatch, caplog)
