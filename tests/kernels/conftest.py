"""Fixtures for Triton kernels, on a GPU or in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/kernels."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()):
    collect_ignore_glob = ["test_*.py"]
elif INTERPRETED:
    from triton import language
    from triton.runtime import interpreter

    convert_float = interpreter._convert_float

    def convert(numbers: np.ndarray, given: object, wanted: object, rounding: object) -> np.ndarray:
        """Round to float8 with the carry into the exponent, which the interpreter's own conversion loses."""
        if wanted != language.float8e4nv:
            return convert_float(numbers, given, wanted, rounding)
        return torch.from_numpy(numbers.view(np.float32)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    interpreter._convert_float = convert

    class Numpy:
        """A replacement of numpy in the interpreter, with products whose rows don't depend on their index in a tile,
        unlike in some CPU libraries, and as on every GPU."""

        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

        @staticmethod
        def matmul(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> np.ndarray:
            return np.einsum("...ij,...jk->...ik", a, b, dtype=dtype, casting="same_kind")

    interpreter.np = Numpy()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
