"""Triton kernels, beside which plain torch does the same more slowly."""

import os
from importlib.util import find_spec
from shutil import which

import torch


def can_run(device: torch.device) -> bool:
    """On a GPU, if Triton can compile: torch's CUDA builds bring it along, but no C compiler."""
    compiler = "CC" in os.environ or which("gcc") or which("clang")
    return device.type == "cuda" and find_spec("triton") is not None and bool(compiler)
