"""Gated activations, against torch's own in float32."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from engine_server.modeling.kernels.activation import gated

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the exponential of a sigmoid that is 0
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gate_kernel_equals_torch(device: torch.device, activation, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in [(1, 1, 2), (1, 3, 3000), (5, 194)]:
        joined = 3 * torch.randn(shape).to(dtype)
        gate, up = joined.chunk(2, -1)
        through = gated(activation, joined.to(device))
        assert through.dtype == dtype
        expected = ACTIVATIONS[activation](gate.float()) * up.float()
        torch.testing.assert_close(
            through.cpu().float(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
