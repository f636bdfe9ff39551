"""Programmatic dependent launch: small kernels that start while the kernel before them on the stream ends.

From Hopper on (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"). A kernel with the
options of `dependent` begins with `start`, before it reads or writes any memory.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from engine_server.modeling.kernels.launch import capability

# Off: it is worth 1 % of a layer on an H200 (`python -m benchmarks.gpu.dependent_launch`), and no test has run with it
# on a GPU.
ENABLED = False
CAPABILITY = 90


def dependent() -> dict[str, bool]:
    """Return the options of the launch of a kernel that calls `start`."""
    if not (ENABLED and capability() >= CAPABILITY and hasattr(cuda, "gdc_wait")):
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}


@triton.jit
def start(DEPENDENT: tl.constexpr):
    """Wait until the kernel before this one has written everything, then let the next one start."""
    if DEPENDENT:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
