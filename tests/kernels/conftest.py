"""Triton's kernels on a GPU, or without one in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/kernels."""

import os
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
