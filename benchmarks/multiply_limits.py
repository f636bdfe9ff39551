"""The most multiply-adds a second of one thread at this machine's instruction level."""

import ctypes
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from engine_server.modeling.native import build
from engine_server.modeling.native.levels import FOLDER, instruction_level

SOURCE = Path(__file__).with_suffix(".cpp")
# The kinds of operands, as the source numbers them: values of 8 bits times codes, or floats.
KINDS = {"float32": 0, "4 bits": 1, "8 bits": 2}
# Half of the second-level cache of the smallest CPUs.
CACHED_BYTES = 1 << 18
PASSES, REPEATS = 50, 20


def limits() -> Mapping[str, Mapping[str, float]]:
    """Return 10^9 multiply-adds a second by kind of operands, from registers and from the second-level cache.

    Raises SystemExit without a compiler.
    """
    compiler = build.find_compiler()
    if compiler is None:
        raise SystemExit(f"the limits need g++ {build.OLDEST} or later")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/limits.so"
        build.run(compiler, instruction_level(), f"-I{FOLDER}", "-shared", str(SOURCE), "-o", library)
        multiply = ctypes.CDLL(library).multiply_limit
    multiply.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    multiply.restype = ctypes.c_int64
    cached = torch.zeros(CACHED_BYTES, dtype=torch.uint8)

    def rate(kind: int, memory: int | None) -> float:
        rates = []
        for _ in range(REPEATS):
            started = time.process_time()
            count = multiply(kind, memory, CACHED_BYTES, PASSES)
            rates.append(count / (time.process_time() - started) / 1e9)
        return max(rates)

    return {
        name: {"registers": rate(kind, None), "second-level cache": rate(kind, cached.data_ptr())}
        for name, kind in KINDS.items()
    }
