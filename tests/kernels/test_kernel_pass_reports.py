"""The passes' reports for every architecture, with the Triton kernels."""

import pytest
import torch
from architectures import ARCHITECTURES
from interpreted import kernel_platform
from pass_reports import assert_reports_unchanged


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's exponentials
def test_passes_replace_the_recorded_modules(device: torch.device) -> None:
    assert_reports_unchanged(kernel_platform(device), "triton", ARCHITECTURES)
