"""The compiled CPU kernels of this machine's instruction level."""

import ctypes
import logging
from functools import cache
from typing import Any

import torch

from engine_server.modeling.native.levels import (
    AMX,
    LEVELS,
    instruction_level,
    instructions,
    library_file,
)
from engine_server.modeling.native.recording import recorder
from engine_server.modeling.native.tile_checks import computes_rightly

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
# Argument types of each function, as declared in its source.
SIGNATURES = {
    "attention": [
        *[INT] * 2, *[POINTER] * 2, *[LONG] * 2, *[POINTER] * 5, LONG, POINTER, *[INT] * 9, *[FLOAT] * 2,
        *[POINTER] * 2,
    ],
    "write_cache": [*[INT] * 2, *[POINTER] * 5, *[LONG] * 2, POINTER, *[LONG] * 2, POINTER, LONG, *[INT] * 4],
    "rms_norm": [INT, *[POINTER] * 5, *[LONG] * 2, *[FLOAT] * 2],
    "silu_and_mul": [INT, *[POINTER] * 2, *[LONG] * 2],
    "gelu_tanh_and_mul": [INT, *[POINTER] * 2, *[LONG] * 2],
    "layer_norm": [INT, *[POINTER] * 4, *[LONG] * 2, FLOAT],
    "activate": [*[INT] * 2, *[POINTER] * 2, LONG],
    "compute": [*[INT] * 4, *[POINTER] * 3, *[LONG] * 16, FLOAT],
    "add_integer": [*[POINTER] * 2, *[LONG] * 2],
    "widen": [*[POINTER] * 2, LONG],
    "copy": [*[POINTER] * 2, *[LONG] * 13],
    "gather": [INT, *[POINTER] * 3, *[LONG] * 2],
    "likeliest": [*[POINTER] * 3, *[LONG] * 3],
    "run_program": [POINTER, LONG, *[POINTER] * 2, LONG],
    "rotate": [INT, *[POINTER] * 2, *[LONG] * 2, *[POINTER] * 2, *[LONG] * 3],
    "multiply_integer": [INT, *[POINTER] * 2, LONG, *[POINTER] * 4, *[LONG] * 3, *[INT] * 2, FLOAT],
    "multiply_minifloat": [INT, *[POINTER] * 2, LONG, *[POINTER] * 3, *[LONG] * 4, INT, POINTER],
    "multiply_floating": [INT, *[POINTER] * 2, LONG, *[POINTER] * 2, *[LONG] * 3],
    "gather_floating": [INT, *[POINTER] * 3, *[LONG] * 2],
    "add_low_rank": [INT, POINTER, LONG, POINTER, LONG, *[POINTER] * 4, *[LONG] * 4],
    "delta_rule": [INT, POINTER, *[POINTER, LONG] * 3, *[POINTER] * 4, *[LONG] * 5, INT],
    "state_space": [INT, POINTER, *[POINTER, LONG] * 3, *[POINTER] * 5, *[LONG] * 5],
    "convolve": [*[INT] * 2, *[POINTER] * 2, LONG, *[POINTER] * 4, *[LONG] * 3],
    "gather_integer": [INT, *[POINTER] * 5, *[LONG] * 2, *[INT] * 2, FLOAT],
}  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)
# The matrix products' numbers of the dtypes of values and results.
PRODUCT_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Row lengths must be a multiple of this number of elements, at every instruction level.
VECTOR = 16
# The OpenMP that torch is linked to, by the name under which the loader knows it.
OPENMP = "libgomp.so.1"
REMEDY = "with g++ 11 or later, `python -m engine_server.modeling.native.build` compiles it"
logger = logging.getLogger(__name__)


def loads() -> bool:
    """Return True if compiled kernels can be loaded on this machine."""
    return obstacle() is None


def obstacle() -> str | None:
    """Return why no compiled kernels can be loaded on this machine, or None if they can."""
    try:
        kernels()
    except OSError as error:
        level = instruction_level()
        if level not in LEVELS:
            return f"there are no kernels for {level}"
        file = library_file(level)
        return str(error) if file.exists() else f"there is no {file}: {REMEDY}"
    return None


class Kernel:
    """A function of the library."""

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        self._function = function
        function.argtypes, function.restype = SIGNATURES[name], None

    @property
    def address(self) -> int:
        """The function's address."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def __call__(self, *arguments: Any) -> None:
        """Call the function. It takes numbers and addresses unchecked."""
        self._function(*arguments)
        current = recorder.get()
        if current is not None:
            current.native(self.name, arguments)


@cache
def kernels() -> Any:
    """Load the library: a `Kernel` for each signature, and its `level`. Raises OSError if it cannot be loaded."""
    found = load(instruction_level())
    if found.level == "amx" and not computes_rightly(found):
        logger.warning("kernels: the CPU's tiles (AMX) give wrong results and are not used")
        found = load(instruction_level(instructions() - AMX))
    return found


def load(level: str) -> Any:
    # Loaded already, by torch; the kernels count their threads by its function.
    ctypes.CDLL(OPENMP, ctypes.RTLD_GLOBAL)
    found: Any = ctypes.CDLL(str(library_file(level)))
    for name in SIGNATURES:
        setattr(found, name, Kernel(name, getattr(found, name)))
    found.level = level
    return found


def address(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's elements for a kernel's argument that may be null."""
    return None if tensor is None else tensor.data_ptr()


def as_rows(values: torch.Tensor) -> torch.Tensor:
    """Return values [..., dim] as rows [n, dim] whose elements follow each other, copied only if necessary."""
    rows = values.reshape(-1, values.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
