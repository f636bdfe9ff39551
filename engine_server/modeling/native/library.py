"""The compiled CPU kernels of this machine's instruction level."""

import ctypes
import logging
from functools import cache

import torch

from engine_server.modeling.native.build import library_file

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
# Argument types of each function, as declared in its source.
SIGNATURES = {
    "decode": [INT, *[POINTER] * 2, *[LONG] * 2, *[POINTER] * 3, LONG, POINTER, *[INT] * 5, FLOAT],
    "write_cache": [*[POINTER] * 2, *[LONG] * 2, POINTER, LONG, *[INT] * 2, LONG],
    "rms_norm": [INT, *[POINTER] * 5, *[LONG] * 2, FLOAT],
    "silu_and_mul": [INT, *[POINTER] * 2, *[LONG] * 2],
    "rotate": [INT, *[POINTER] * 2, *[LONG] * 2, *[POINTER] * 2, *[LONG] * 3],
}
DTYPES = (torch.float32, torch.bfloat16)
# Row lengths must be a multiple of this number of elements, at every instruction level.
VECTOR = 16
logger = logging.getLogger(__name__)


def loads() -> bool:
    """Return True if compiled kernels can be loaded on this machine; log the reason if not."""
    try:
        kernels()
    except OSError as error:
        logger.info("plain torch is used instead of the CPU kernels, and is slower: %s", error)
        return False
    return True


@cache
def kernels() -> ctypes.CDLL:
    """Load the library. Its functions take numbers and addresses unchecked. Raises OSError if it cannot be loaded."""
    found = ctypes.CDLL(str(library_file(torch.backends.cpu.get_cpu_capability())))
    for name, arguments in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    return found
