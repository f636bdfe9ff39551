"""The marker of tests that need the compiled CPU kernels."""

import pytest

from engine_server.modeling.native import library

needs_kernels = pytest.mark.skipif(
    not library.loads(), reason="the CPU kernels are not compiled: that takes Linux on x86-64 and g++"
)
